-- A collation is nothing that the lake knows
CREATE TABLE t (id int PRIMARY KEY, v varchar(10));
INSERT INTO t VALUES (1, 'a');
-- captured
ALTER TABLE t MODIFY v varchar(10) COLLATE utf8mb4_bin;
INSERT INTO t VALUES (2, 'b');
-- rows t: id | v
-- 1 | a
-- 2 | b
