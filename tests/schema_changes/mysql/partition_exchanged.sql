-- A partition changes places with a table
CREATE TABLE t (id int PRIMARY KEY, v varchar(5)) PARTITION BY RANGE (id) (PARTITION p1 VALUES LESS THAN (10), PARTITION p2 VALUES LESS THAN (20));
CREATE TABLE u (id int PRIMARY KEY, v varchar(5));
INSERT INTO t VALUES (1, 'a'), (11, 'k');
INSERT INTO u VALUES (12, 'l'), (13, 'm');
-- captured
ALTER TABLE t EXCHANGE PARTITION p2 WITH TABLE u;
INSERT INTO t VALUES (14, 'n');
-- notice t: ALTER TABLE: dumping it again
-- notice u: ALTER TABLE: dumping it again
-- rows t: id | v
-- 1 | a
-- 12 | l
-- 13 | m
-- 14 | n
-- rows u: id | v
-- 11 | k
