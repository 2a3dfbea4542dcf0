-- A table is made after another one, and filled from it
CREATE TABLE u (id int PRIMARY KEY, v varchar(5));
INSERT INTO u VALUES (1, 'a'), (2, 'b');
-- captured
CREATE TABLE t LIKE u;
INSERT INTO t SELECT * FROM u;
DELETE FROM t WHERE id = 1;
-- rows t: id | v
-- 2 | b
-- rows u: id | v
-- 1 | a
-- 2 | b
