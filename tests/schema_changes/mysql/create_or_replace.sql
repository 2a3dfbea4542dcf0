-- A table is created again in one statement
-- only mariadb
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
CREATE OR REPLACE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (2, 'new');
-- rows t: id | v
-- 2 | new
