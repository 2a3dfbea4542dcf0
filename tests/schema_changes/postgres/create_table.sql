-- A table is made while the agent runs
CREATE TABLE u (id int PRIMARY KEY);
-- captured
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
UPDATE t SET v = 'b';
-- rows t: id | v
-- 1 | b
-- rows u: id
