-- A table is dropped and created again with the same columns
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
DROP TABLE t;
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (2, 'new'), (3, 'new');
UPDATE t SET v = 'newer' WHERE id = 3;
-- rows t: id | v
-- 2 | new
-- 3 | newer
