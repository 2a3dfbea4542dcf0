-- Old rows keep the value that was the default when the column was added
CREATE TABLE t (id int PRIMARY KEY);
INSERT INTO t VALUES (1), (2);
-- captured
ALTER TABLE t ADD COLUMN n int DEFAULT 7;
ALTER TABLE t ALTER COLUMN n SET DEFAULT 8;
INSERT INTO t VALUES (3);
-- rows t: id | n
-- 1 | 7
-- 2 | 7
-- 3 | 8
