-- A copy takes a table's place, as online migrations do
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
CREATE TABLE t_new (id bigint PRIMARY KEY, v text, n int DEFAULT 5);
INSERT INTO t_new SELECT id, upper(v) FROM t;
BEGIN;
ALTER TABLE t RENAME TO t_old;
ALTER TABLE t_new RENAME TO t;
COMMIT;
INSERT INTO t VALUES (3, 'C', 6);
-- rows t: id | n | v
-- 1 | 5 | A
-- 2 | 5 | B
-- 3 | 6 | C
-- rows t_old: id | v
-- 1 | a
-- 2 | b
