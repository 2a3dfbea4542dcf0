-- An array's elements are widened
CREATE TABLE t (id int PRIMARY KEY, v int[]);
INSERT INTO t VALUES (1, '{1,2}'), (2, NULL);
-- captured
ALTER TABLE t ALTER COLUMN v TYPE text[] USING v::text[];
INSERT INTO t VALUES (3, '{x}');
-- rows t: id | v
-- 1 | {1,2}
-- 2 | None
-- 3 | {x}
