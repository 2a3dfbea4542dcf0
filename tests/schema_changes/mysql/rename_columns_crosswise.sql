-- Two columns of one type change their names in one statement
CREATE TABLE t (id int PRIMARY KEY, a int, b int);
INSERT INTO t VALUES (1, 10, 20), (2, 11, 21);
-- captured
ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a;
INSERT INTO t VALUES (3, 12, 22);
-- rows t: a | b | id
-- 20 | 10 | 1
-- 21 | 11 | 2
-- 22 | 12 | 3
