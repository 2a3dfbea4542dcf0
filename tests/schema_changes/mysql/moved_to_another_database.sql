-- A table moves where no pattern finds it, and back
CREATE TABLE t (id int PRIMARY KEY, v varchar(5));
INSERT INTO t VALUES (1, 'a');
CREATE DATABASE $NAMESPACE_elsewhere;
-- captured
BEGIN;
RENAME TABLE t TO $NAMESPACE_elsewhere.t;
INSERT INTO $NAMESPACE_elsewhere.t VALUES (2, 'b');
RENAME TABLE $NAMESPACE_elsewhere.t TO t;
COMMIT;
INSERT INTO t VALUES (3, 'c');
-- rows t: id | v
-- 1 | a
-- 2 | b
-- 3 | c
