-- A table leaves the publication and comes back
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
BEGIN;
ALTER PUBLICATION deltatide_shop DROP TABLE t;
COMMIT;
UPDATE t SET v = 'unseen' WHERE id = 1;
DELETE FROM t WHERE id = 2;
-- notice t: was missing from the publication
-- rows t: id | v
-- 1 | unseen
