-- What is rolled back within a transaction never was
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
-- captured
BEGIN;
INSERT INTO t VALUES (2, 'b');
SAVEPOINT s;
ALTER TABLE t ADD COLUMN n int DEFAULT 7;
INSERT INTO t VALUES (3, 'c', 1);
ROLLBACK TO s;
INSERT INTO t VALUES (4, 'd');
COMMIT;
-- rows t: id | v
-- 1 | a
-- 2 | b
-- 4 | d
