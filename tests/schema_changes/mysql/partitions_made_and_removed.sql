-- Partitions change, rows do not
CREATE TABLE t (id int PRIMARY KEY, v varchar(5));
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
ALTER TABLE t PARTITION BY HASH (id) PARTITIONS 3;
INSERT INTO t VALUES (3, 'c');
ALTER TABLE t COALESCE PARTITION 1;
ALTER TABLE t REMOVE PARTITIONING;
INSERT INTO t VALUES (4, 'd');
-- rows t: id | v
-- 1 | a
-- 2 | b
-- 3 | c
-- 4 | d
