-- Indexes come and go
CREATE TABLE t (id int PRIMARY KEY, v varchar(20));
INSERT INTO t VALUES (1, 'a');
-- captured
CREATE UNIQUE INDEX t_v ON t (v);
INSERT INTO t VALUES (2, 'b');
DROP INDEX t_v ON t;
ANALYZE TABLE t;
INSERT INTO t VALUES (3, 'b');
-- rows t: id | v
-- 1 | a
-- 2 | b
-- 3 | b
