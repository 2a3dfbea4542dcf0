-- A table that is all key gets another column
CREATE TABLE t (id int PRIMARY KEY);
INSERT INTO t VALUES (1), (2);
-- captured
UPDATE t SET id = 3 WHERE id = 2;
ALTER TABLE t ADD COLUMN v text;
UPDATE t SET v = 'a', id = 4 WHERE id = 3;
-- rows t: id | v
-- 1 | None
-- 4 | a
