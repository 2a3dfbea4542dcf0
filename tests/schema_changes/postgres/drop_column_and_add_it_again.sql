-- A column comes back by the same name and type, without its old values
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
ALTER TABLE t DROP COLUMN v;
ALTER TABLE t ADD COLUMN v text;
INSERT INTO t VALUES (3, 'c');
-- rows t: id | v
-- 1 | None
-- 2 | None
-- 3 | c
