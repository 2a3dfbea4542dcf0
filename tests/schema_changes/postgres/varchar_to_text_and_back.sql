-- Text and varchar are the same in the lake, what was cut off is not
CREATE TABLE t (id int PRIMARY KEY, v varchar(10));
INSERT INTO t VALUES (1, 'abcdefgh'), (2, 'ab');
-- captured
ALTER TABLE t ALTER COLUMN v TYPE text;
UPDATE t SET v = 'a very long text' WHERE id = 2;
ALTER TABLE t ALTER COLUMN v TYPE varchar(5) USING substr(v, 1, 5);
-- rows t: id | v
-- 1 | abcde
-- 2 | a ver
