-- A column is added in the middle, of the same type as its neighbours
CREATE TABLE t (id int PRIMARY KEY, a int, b int);
INSERT INTO t VALUES (1, 10, 20);
-- captured
ALTER TABLE t ADD COLUMN n int DEFAULT 5 AFTER a;
INSERT INTO t VALUES (2, 11, 12, 13);
UPDATE t SET b = 21 WHERE id = 1;
-- rows t: a | b | id | n
-- 10 | 21 | 1 | 5
-- 11 | 13 | 2 | 12
