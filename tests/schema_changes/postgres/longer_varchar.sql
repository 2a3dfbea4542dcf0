-- A longer varchar changes nothing but what fits
CREATE TABLE t (id int PRIMARY KEY, v varchar(3));
INSERT INTO t VALUES (1, 'abc');
-- captured
ALTER TABLE t ALTER COLUMN v TYPE varchar(10);
INSERT INTO t VALUES (2, 'abcdefgh');
-- rows t: id | v
-- 1 | abc
-- 2 | abcdefgh
