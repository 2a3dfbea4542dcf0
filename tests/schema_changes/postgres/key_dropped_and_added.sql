-- A table has no key for a moment
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
-- captured
BEGIN;
ALTER TABLE t DROP CONSTRAINT t_pkey;
ALTER TABLE t ADD CONSTRAINT another PRIMARY KEY (id);
COMMIT;
UPDATE t SET v = 'b';
-- notice t: its key was without a unique index
-- rows t: id | v
-- 1 | b
