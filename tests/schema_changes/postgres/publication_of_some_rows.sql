-- A table is published with a filter
-- since 15
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
BEGIN;
ALTER PUBLICATION deltatide_shop DROP TABLE t;
ALTER PUBLICATION deltatide_shop ADD TABLE t WHERE (id > 1);
COMMIT;
INSERT INTO t VALUES (0, 'unseen'), (3, 'seen');
-- notice t: was missing from the publication
-- rows t: id | v
-- 0 | unseen
-- 1 | a
-- 2 | b
-- 3 | seen
