-- The log carries whole rows before each change
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
ALTER TABLE t REPLICA IDENTITY FULL;
UPDATE t SET v = 'c' WHERE id = 1;
UPDATE t SET id = 5 WHERE id = 2;
DELETE FROM t WHERE id = 1;
ALTER TABLE t REPLICA IDENTITY DEFAULT;
UPDATE t SET v = 'd' WHERE id = 5;
-- rows t: id | v
-- 5 | d
