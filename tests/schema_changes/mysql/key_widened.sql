-- The key column is widened
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
-- captured
ALTER TABLE t MODIFY id bigint;
INSERT INTO t VALUES (5000000000, 'b');
UPDATE t SET v = 'c' WHERE id = 1;
-- notice t: columns changed type: id
-- rows t: id | v
-- 1 | c
-- 5000000000 | b
