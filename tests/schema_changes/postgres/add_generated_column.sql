-- A generated column is not in the log, and so not in the lake
CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t VALUES (1, 10), (2, 20);
-- captured
ALTER TABLE t ADD COLUMN twice int GENERATED ALWAYS AS (v * 2) STORED;
INSERT INTO t VALUES (3, 30);
-- rows t: id | v
-- 1 | 10
-- 2 | 20
-- 3 | 30
