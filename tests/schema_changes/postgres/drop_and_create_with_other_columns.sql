-- A table is dropped and created again with other columns
CREATE TABLE t (id int PRIMARY KEY, v text, w int);
INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2);
-- captured
DROP TABLE t;
CREATE TABLE t (w text, id int PRIMARY KEY, x int);
INSERT INTO t VALUES ('w', 2, 1);
-- rows t: id | w | x
-- 2 | w | 1
