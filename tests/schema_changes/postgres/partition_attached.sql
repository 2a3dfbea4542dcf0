-- A partition comes with rows
CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE SCHEMA IF NOT EXISTS attached;
CREATE TABLE p1 PARTITION OF t FOR VALUES FROM (0) TO (10);
INSERT INTO t VALUES (1, 'a');
-- captured
CREATE TABLE attached.p2 (id int PRIMARY KEY, v text);
INSERT INTO attached.p2 VALUES (11, 'k'), (12, 'l');
ALTER TABLE t ATTACH PARTITION attached.p2 FOR VALUES FROM (10) TO (20);
INSERT INTO t VALUES (13, 'm');
-- notice t: a partition truncated, attached or detached
-- rows t: id | v
-- 1 | a
-- 11 | k
-- 12 | l
-- 13 | m
