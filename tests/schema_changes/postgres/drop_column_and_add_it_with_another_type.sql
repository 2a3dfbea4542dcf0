-- A column comes back by the same name with another type
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
ALTER TABLE t DROP COLUMN v, ADD COLUMN v int DEFAULT 5;
INSERT INTO t VALUES (3, 6);
-- rows t: id | v
-- 1 | 5
-- 2 | 5
-- 3 | 6
