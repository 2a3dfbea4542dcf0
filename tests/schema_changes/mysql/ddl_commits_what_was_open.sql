-- A statement that changes a layout ends the transaction before it
CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t VALUES (1, 1);
-- captured
BEGIN;
INSERT INTO t VALUES (2, 2);
ALTER TABLE t ADD COLUMN n int DEFAULT 7;
INSERT INTO t VALUES (3, 3, 8);
ROLLBACK;
UPDATE t SET n = 9 WHERE id = 2;
-- rows t: id | n | v
-- 1 | 7 | 1
-- 2 | 9 | 2
-- 3 | 8 | 3
