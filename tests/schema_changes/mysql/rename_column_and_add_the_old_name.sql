-- A column is renamed and another one takes its name
CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t VALUES (1, 10), (2, 20);
-- captured
ALTER TABLE t RENAME COLUMN v TO w;
ALTER TABLE t ADD COLUMN v int DEFAULT 5;
INSERT INTO t VALUES (3, 30, 6);
-- rows t: id | v | w
-- 1 | 5 | 10
-- 2 | 5 | 20
-- 3 | 6 | 30
