-- All texts change, the type does not
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
ALTER TABLE t ALTER COLUMN v TYPE text USING upper(v);
INSERT INTO t VALUES (3, 'c');
-- rows t: id | v
-- 1 | A
-- 2 | B
-- 3 | c
