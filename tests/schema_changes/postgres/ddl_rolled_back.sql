-- What is rolled back never was
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
-- captured
BEGIN;
ALTER TABLE t ADD COLUMN n int DEFAULT 7;
INSERT INTO t VALUES (2, 'b', 1);
ROLLBACK;
INSERT INTO t VALUES (3, 'c');
-- rows t: id | v
-- 1 | a
-- 3 | c
