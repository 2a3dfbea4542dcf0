-- A column is added by copying the table
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
ALTER TABLE t ADD COLUMN n int NOT NULL DEFAULT 7, ALGORITHM = COPY;
INSERT INTO t VALUES (3, 'c', 8);
-- rows t: id | n | v
-- 1 | 7 | a
-- 2 | 7 | b
-- 3 | 8 | c
