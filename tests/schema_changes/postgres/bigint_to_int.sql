-- An integer is narrowed
CREATE TABLE t (id int PRIMARY KEY, n bigint);
INSERT INTO t VALUES (1, 10), (2, 20);
-- captured
ALTER TABLE t ALTER COLUMN n TYPE int;
INSERT INTO t VALUES (3, 30);
-- notice t: columns changed type: n
-- rows t: id | n
-- 1 | 10
-- 2 | 20
-- 3 | 30
