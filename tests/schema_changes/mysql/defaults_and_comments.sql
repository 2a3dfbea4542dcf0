-- What only concerns rows to come
CREATE TABLE t (id int PRIMARY KEY, v varchar(10), n int);
INSERT INTO t VALUES (1, 'a', 1);
-- captured
ALTER TABLE t ALTER COLUMN v SET DEFAULT 'd', MODIFY n int NOT NULL COMMENT 'a number';
INSERT INTO t (id, n) VALUES (2, 2);
ALTER TABLE t COMMENT = 'a table', AUTO_INCREMENT = 100;
INSERT INTO t (id, n) VALUES (3, 3);
-- rows t: id | n | v
-- 1 | 1 | a
-- 2 | 2 | d
-- 3 | 3 | d
