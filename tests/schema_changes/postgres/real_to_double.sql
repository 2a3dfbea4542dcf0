-- A float is widened
CREATE TABLE t (id int PRIMARY KEY, v real);
INSERT INTO t VALUES (1, 1.1), (2, NULL);
-- captured
ALTER TABLE t ALTER COLUMN v TYPE double precision;
INSERT INTO t VALUES (3, 1.1);
-- rows t: id | v
-- 1 | 1.100000023841858
-- 2 | None
-- 3 | 1.1
