-- A table moves where no pattern finds it, and back
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
CREATE SCHEMA IF NOT EXISTS elsewhere;
-- captured
ALTER TABLE t SET SCHEMA elsewhere;
INSERT INTO elsewhere.t VALUES (2, 'b');
BEGIN;
ALTER TABLE elsewhere.t SET SCHEMA $NAMESPACE;
COMMIT;
INSERT INTO t VALUES (3, 'c');
-- rows t: id | v
-- 1 | a
-- 2 | b
-- 3 | c
