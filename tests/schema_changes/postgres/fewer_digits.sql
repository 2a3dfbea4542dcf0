-- A decimal too wide for the lake's own type is rounded
CREATE TABLE t (id int PRIMARY KEY, n numeric(50, 4));
INSERT INTO t VALUES (1, 10.2555), (2, 20);
-- captured
ALTER TABLE t ALTER COLUMN n TYPE numeric(50, 2);
INSERT INTO t VALUES (3, 30.12);
-- rows t: id | n
-- 1 | 10.26
-- 2 | 20.00
-- 3 | 30.12
