-- Columns of one type change places, and keep their values
CREATE TABLE t (id int PRIMARY KEY, a int, b int, c int);
INSERT INTO t VALUES (1, 10, 20, 30), (2, 11, 21, 31);
-- captured
ALTER TABLE t MODIFY c int AFTER id;
INSERT INTO t VALUES (3, 32, 12, 22);
UPDATE t SET a = 0 WHERE id = 1;
-- rows t: a | b | c | id
-- 0 | 20 | 30 | 1
-- 11 | 21 | 31 | 2
-- 12 | 22 | 32 | 3
