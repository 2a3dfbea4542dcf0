-- A column is dropped
CREATE TABLE t (id int PRIMARY KEY, old int, v int);
INSERT INTO t VALUES (1, 10, 20), (2, 11, 21);
-- captured
ALTER TABLE t DROP COLUMN old;
INSERT INTO t VALUES (3, 22);
UPDATE t SET v = 0 WHERE id = 1;
-- notice t: columns dropped: old
-- rows t: id | v
-- 1 | 0
-- 2 | 21
-- 3 | 22
