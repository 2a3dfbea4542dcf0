-- A table has another name for a time, and is changed under it
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
-- captured
BEGIN;
ALTER TABLE t RENAME TO other;
INSERT INTO other VALUES (2, 'b');
ALTER TABLE other RENAME TO t;
COMMIT;
INSERT INTO t VALUES (3, 'c');
-- notice t: it was renamed for a time | the log has changes of it under another name
-- rows t: id | v
-- 1 | a
-- 2 | b
-- 3 | c
