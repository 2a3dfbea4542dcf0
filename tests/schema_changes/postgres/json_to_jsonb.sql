-- The same type in the lake, other texts
CREATE TABLE t (id int PRIMARY KEY, v json);
INSERT INTO t VALUES (1, '{"b": 1,   "a": 2, "b": 3}');
-- captured
ALTER TABLE t ALTER COLUMN v TYPE jsonb;
INSERT INTO t VALUES (2, '{"z":1,"y":2}');
-- rows t: id | v
-- 1 | {"a": 2, "b": 3}
-- 2 | {"y": 2, "z": 1}
