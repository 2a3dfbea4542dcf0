-- A table has another name for a time, and is changed under it
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
-- captured
BEGIN;
RENAME TABLE t TO other;
INSERT INTO other VALUES (2, 'b');
RENAME TABLE other TO t;
COMMIT;
INSERT INTO t VALUES (3, 'c');
-- notice t: RENAME TABLE: dumping it again
-- rows t: id | v
-- 1 | a
-- 2 | b
-- 3 | c
