-- A shorter varchar cuts values off
CREATE TABLE t (id int PRIMARY KEY, v varchar(10));
INSERT INTO t VALUES (1, 'abcdefgh'), (2, 'ab');
-- captured
ALTER TABLE t ALTER COLUMN v TYPE varchar(3) USING left(v, 3);
INSERT INTO t VALUES (3, 'xyz');
-- rows t: id | v
-- 1 | abc
-- 2 | ab
-- 3 | xyz
