-- A table is rewritten with the same rows
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
DELETE FROM t WHERE id = 1;
VACUUM FULL t;
INSERT INTO t VALUES (3, 'c');
CLUSTER t USING t_pkey;
-- rows t: id | v
-- 2 | b
-- 3 | c
