-- A partition goes with its rows
CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF t FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF t FOR VALUES FROM (10) TO (20);
INSERT INTO t VALUES (1, 'a'), (11, 'k');
-- captured
BEGIN;
ALTER TABLE t DETACH PARTITION p2;
DROP TABLE p2;
COMMIT;
INSERT INTO t VALUES (2, 'b');
-- notice t: a partition truncated, attached or detached
-- rows t: id | v
-- 1 | a
-- 2 | b
