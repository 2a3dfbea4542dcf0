-- A layout changes between two changes of one transaction
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
-- captured
BEGIN;
INSERT INTO t VALUES (2, 'b');
ALTER TABLE t ADD COLUMN n int DEFAULT 7;
INSERT INTO t VALUES (3, 'c', 8);
ALTER TABLE t DROP COLUMN v;
UPDATE t SET n = 9 WHERE id = 2;
COMMIT;
INSERT INTO t VALUES (4, 10);
-- rows t: id | n
-- 1 | 7
-- 2 | 9
-- 3 | 8
-- 4 | 10
