-- A column takes another domain over the same type
CREATE DOMAIN short AS varchar(10);
CREATE DOMAIN code AS varchar(5) CHECK (value <> '');
CREATE TABLE t (id int PRIMARY KEY, v short);
INSERT INTO t VALUES (1, 'abcdefg'), (2, 'ab');
-- captured
ALTER TABLE t ALTER COLUMN v TYPE code USING left(v, 5);
INSERT INTO t VALUES (3, 'xyz');
-- rows t: id | v
-- 1 | abcde
-- 2 | ab
-- 3 | xyz
