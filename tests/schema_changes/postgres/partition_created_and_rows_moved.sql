-- A row moves from one partition to another
CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF t FOR VALUES FROM (0) TO (10);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
CREATE TABLE p2 PARTITION OF t FOR VALUES FROM (10) TO (20);
UPDATE t SET id = 11 WHERE id = 1;
ALTER TABLE t ADD COLUMN n int DEFAULT 3;
UPDATE t SET id = 12 WHERE id = 2;
-- rows t: id | n | v
-- 11 | 3 | a
-- 12 | 3 | b
