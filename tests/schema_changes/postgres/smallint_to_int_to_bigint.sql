-- An integer is widened twice
CREATE TABLE t (id int PRIMARY KEY, n smallint);
INSERT INTO t VALUES (1, 10), (2, 20);
-- captured
ALTER TABLE t ALTER COLUMN n TYPE int;
INSERT INTO t VALUES (3, 100000);
ALTER TABLE t ALTER COLUMN n TYPE bigint;
INSERT INTO t VALUES (4, 5000000000);
-- rows t: id | n
-- 1 | 10
-- 2 | 20
-- 3 | 100000
-- 4 | 5000000000
