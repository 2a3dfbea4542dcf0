-- A number becomes a text
CREATE TABLE t (id int PRIMARY KEY, n int);
INSERT INTO t VALUES (1, 10), (2, 20);
-- captured
ALTER TABLE t ALTER COLUMN n TYPE text USING 'n' || n;
INSERT INTO t VALUES (3, 'x');
-- rows t: id | n
-- 1 | n10
-- 2 | n20
-- 3 | x
