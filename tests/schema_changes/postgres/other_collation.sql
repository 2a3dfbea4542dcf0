-- A collation is nothing that the lake knows
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
-- captured
ALTER TABLE t ALTER COLUMN v TYPE text COLLATE "C";
INSERT INTO t VALUES (2, 'b');
-- rows t: id | v
-- 1 | a
-- 2 | b
