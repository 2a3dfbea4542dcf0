-- A shorter varchar cuts values off
CREATE TABLE t (id int PRIMARY KEY, v varchar(10));
INSERT INTO t VALUES (1, 'abcdefgh'), (2, 'ab');
-- captured
SET sql_mode = '';
ALTER TABLE t MODIFY v varchar(3);
INSERT INTO t VALUES (3, 'xyz');
-- notice t: ALTER TABLE ... MODIFY: dumping it again
-- rows t: id | v
-- 1 | abc
-- 2 | ab
-- 3 | xyz
