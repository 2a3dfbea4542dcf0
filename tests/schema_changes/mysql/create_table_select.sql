-- A table is made from a query
CREATE TABLE u (id int PRIMARY KEY, v varchar(5));
INSERT INTO u VALUES (1, 'a'), (2, 'b');
-- captured
CREATE TABLE t (id int PRIMARY KEY) SELECT id, upper(v) AS w FROM u;
UPDATE t SET w = 'x' WHERE id = 1;
-- rows t: id | w
-- 1 | x
-- 2 | B
-- rows u: id | v
-- 1 | a
-- 2 | b
