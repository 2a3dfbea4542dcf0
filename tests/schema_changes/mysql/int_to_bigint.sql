-- An integer is widened
CREATE TABLE t (id int PRIMARY KEY, n int, m smallint);
INSERT INTO t VALUES (1, 10, 1), (2, 20, 2);
-- captured
ALTER TABLE t MODIFY n bigint, MODIFY m mediumint;
INSERT INTO t VALUES (3, 5000000000, 100000);
-- notice t: columns changed type: n, m
-- rows t: id | m | n
-- 1 | 1 | 10
-- 2 | 2 | 20
-- 3 | 100000 | 5000000000
