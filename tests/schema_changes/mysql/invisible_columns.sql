-- A column that no star shows
CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t VALUES (1, 1), (2, 2);
-- captured
ALTER TABLE t ADD COLUMN hidden int INVISIBLE DEFAULT 5;
INSERT INTO t VALUES (3, 3);
UPDATE t SET hidden = 6 WHERE id = 1;
-- notice t: columns added: hidden
-- rows t: hidden | id | v
-- 5 | 2 | 2
-- 5 | 3 | 3
-- 6 | 1 | 1
