-- A table is logged no longer
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
-- captured
BEGIN;
ALTER PUBLICATION deltatide_shop DROP TABLE t;
ALTER TABLE t SET UNLOGGED;
COMMIT;
INSERT INTO t VALUES (2, 'b');
-- quarantined t: unlogged
