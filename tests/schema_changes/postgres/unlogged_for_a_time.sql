-- A table is not logged for a time
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
-- captured
BEGIN;
ALTER PUBLICATION deltatide_shop DROP TABLE t;
ALTER TABLE t SET UNLOGGED;
INSERT INTO t VALUES (2, 'b');
COMMIT;
ALTER TABLE t SET LOGGED;
INSERT INTO t VALUES (3, 'c');
-- released t
-- rows t: id | v
-- 1 | a
-- 2 | b
-- 3 | c
