-- A value that no list has any more takes its rows along
CREATE TABLE t (id int PRIMARY KEY, v varchar(5)) PARTITION BY LIST (id) (PARTITION p1 VALUES IN (1, 2, 3), PARTITION p2 VALUES IN (4, 5));
INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd'), (5, 'e');
-- captured
ALTER TABLE t REORGANIZE PARTITION p1, p2 INTO (PARTITION p1 VALUES IN (1, 2), PARTITION p2 VALUES IN (4));
UPDATE t SET v = 'x' WHERE id = 4;
-- notice t: ALTER TABLE ... REORGANIZE PARTITION: dumping it again
-- rows t: id | v
-- 1 | a
-- 2 | b
-- 4 | x
