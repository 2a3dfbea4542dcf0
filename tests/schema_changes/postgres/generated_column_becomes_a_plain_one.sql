-- The expression of a generated column is dropped: its values stay, and are captured from then on
CREATE TABLE t (id int PRIMARY KEY, v int, twice int GENERATED ALWAYS AS (v * 2) STORED);
INSERT INTO t VALUES (1, 10), (2, 20);
-- captured
ALTER TABLE t ALTER COLUMN twice DROP EXPRESSION;
INSERT INTO t VALUES (3, 30, 1);
-- notice t: columns added: twice
-- rows t: id | twice | v
-- 1 | 20 | 10
-- 2 | 40 | 20
-- 3 | 1 | 30
