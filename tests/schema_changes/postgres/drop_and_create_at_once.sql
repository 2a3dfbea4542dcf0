-- The same in one transaction, with rows
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
BEGIN;
DROP TABLE t;
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (2, 'new');
COMMIT;
INSERT INTO t VALUES (3, 'newer');
-- rows t: id | v
-- 2 | new
-- 3 | newer
