-- An integer is widened
CREATE TABLE t (id int PRIMARY KEY, n int);
INSERT INTO t VALUES (1, 10), (2, 20);
-- captured
ALTER TABLE t ALTER COLUMN n TYPE bigint;
INSERT INTO t VALUES (3, 5000000000);
-- rows t: id | n
-- 1 | 10
-- 2 | 20
-- 3 | 5000000000
