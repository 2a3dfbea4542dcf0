-- All values change, the type does not
CREATE TABLE t (id int PRIMARY KEY, n int);
INSERT INTO t VALUES (1, 10), (2, 20);
-- captured
ALTER TABLE t ALTER COLUMN n TYPE int USING n * 10;
INSERT INTO t VALUES (3, 30);
-- notice t: it was rewritten
-- rows t: id | n
-- 1 | 100
-- 2 | 200
-- 3 | 30
