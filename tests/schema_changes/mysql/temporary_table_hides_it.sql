-- What is done to a temporary table is not done to the one that it hides
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
-- captured
CREATE TEMPORARY TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (9, 'hidden');
TRUNCATE t;
DROP TEMPORARY TABLE t;
INSERT INTO t VALUES (2, 'b');
-- rows t: id | v
-- 1 | a
-- 2 | b
