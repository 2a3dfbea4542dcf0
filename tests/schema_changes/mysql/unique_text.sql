-- MariaDB adds a hidden column of hashes
-- only mariadb
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
ALTER TABLE t ADD UNIQUE (v);
INSERT INTO t VALUES (3, 'c');
UPDATE t SET v = 'd' WHERE id = 1;
-- rows t: id | v
-- 1 | d
-- 2 | b
-- 3 | c
