-- A serial column numbers the rows that are there
CREATE TABLE t (id int PRIMARY KEY);
INSERT INTO t VALUES (10), (20);
-- captured
ALTER TABLE t ADD COLUMN n serial;
INSERT INTO t VALUES (30);
-- rows t: id | n
-- 10 | 1
-- 20 | 2
-- 30 | 3
