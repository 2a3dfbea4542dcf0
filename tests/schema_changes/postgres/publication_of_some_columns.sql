-- A table is published without a column
-- since 15
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
BEGIN;
ALTER PUBLICATION deltatide_shop DROP TABLE t;
ALTER PUBLICATION deltatide_shop ADD TABLE t (id);
COMMIT;
INSERT INTO t VALUES (3, 'unseen');
UPDATE t SET v = 'unseen' WHERE id = 1;
-- rows t: id | v
-- 1 | unseen
-- 2 | b
-- 3 | unseen
