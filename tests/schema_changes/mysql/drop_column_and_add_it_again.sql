-- A column comes back by the same name and type, without its old values
CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t VALUES (1, 10), (2, 20);
-- captured
ALTER TABLE t DROP COLUMN v;
ALTER TABLE t ADD COLUMN v int;
INSERT INTO t VALUES (3, 30);
-- rows t: id | v
-- 1 | None
-- 2 | None
-- 3 | 30
