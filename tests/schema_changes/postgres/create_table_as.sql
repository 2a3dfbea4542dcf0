-- A table is made from a query, and gets its key later
CREATE TABLE u (id int PRIMARY KEY);
INSERT INTO u VALUES (1), (2);
-- captured
BEGIN;
CREATE TABLE t AS SELECT id, 'v' || id AS v FROM u;
ALTER TABLE t ADD PRIMARY KEY (id);
COMMIT;
INSERT INTO t VALUES (3, 'v3');
-- rows t: id | v
-- 1 | v1
-- 2 | v2
-- 3 | v3
-- rows u: id
-- 1
-- 2
