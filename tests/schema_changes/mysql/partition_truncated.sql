-- A partition is emptied by itself
CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id) (PARTITION p1 VALUES LESS THAN (10), PARTITION p2 VALUES LESS THAN (20));
INSERT INTO t VALUES (1, 'a'), (11, 'k');
-- captured
ALTER TABLE t TRUNCATE PARTITION p2;
INSERT INTO t VALUES (12, 'l');
-- notice t: ALTER TABLE ... TRUNCATE PARTITION: dumping it again
-- rows t: id | v
-- 1 | a
-- 12 | l
