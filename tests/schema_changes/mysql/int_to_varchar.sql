-- A number becomes a text
CREATE TABLE t (id int PRIMARY KEY, n int);
INSERT INTO t VALUES (1, 10), (2, 20);
-- captured
ALTER TABLE t MODIFY n varchar(20);
INSERT INTO t VALUES (3, 'x');
-- rows t: id | n
-- 1 | 10
-- 2 | 20
-- 3 | x
