-- A table gets versions of its rows
-- only mariadb
CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t VALUES (1, 1), (2, 2);
-- captured
ALTER TABLE t ADD SYSTEM VERSIONING;
UPDATE t SET v = 10 WHERE id = 1;
DELETE FROM t WHERE id = 2;
INSERT INTO t (id, v) VALUES (3, 3);
