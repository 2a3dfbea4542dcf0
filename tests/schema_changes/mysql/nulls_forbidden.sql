-- Nulls become something else when they are forbidden
CREATE TABLE t (id int PRIMARY KEY, n int, v varchar(5));
INSERT INTO t VALUES (1, NULL, NULL), (2, 2, 'b');
-- captured
SET sql_mode = '';
ALTER TABLE t MODIFY n int NOT NULL, MODIFY v varchar(5) NOT NULL, ALGORITHM = COPY;
INSERT INTO t VALUES (3, 3, 'c');
-- rows t: id | n | v
-- 1 | 0 | 
-- 2 | 2 | b
-- 3 | 3 | c
