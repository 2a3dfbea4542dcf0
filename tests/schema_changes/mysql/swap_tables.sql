-- A copy takes a table's place, as online migrations do
CREATE TABLE t (id int PRIMARY KEY, v varchar(10));
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
CREATE TABLE t_new (id bigint PRIMARY KEY, v varchar(10), n int DEFAULT 5);
INSERT INTO t_new (id, v) SELECT id, upper(v) FROM t;
RENAME TABLE t TO t_old, t_new TO t;
INSERT INTO t VALUES (3, 'C', 6);
-- rows t: id | n | v
-- 1 | 5 | A
-- 2 | 5 | B
-- 3 | 6 | C
-- rows t_old: id | v
-- 1 | a
-- 2 | b
