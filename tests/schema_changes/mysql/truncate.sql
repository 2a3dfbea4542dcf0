-- A table is emptied and filled again
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
TRUNCATE t;
INSERT INTO t VALUES (2, 'new');
TRUNCATE TABLE t;
INSERT INTO t VALUES (4, 'd');
-- rows t: id | v
-- 4 | d
