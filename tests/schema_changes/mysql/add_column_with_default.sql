-- A column with a constant default is added: no row is rewritten, all rows have its value
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
ALTER TABLE t ADD COLUMN n int DEFAULT 7;
ALTER TABLE t ALTER COLUMN n SET DEFAULT 8;
INSERT INTO t (id, v) VALUES (3, 'c');
-- rows t: id | n | v
-- 1 | 7 | a
-- 2 | 7 | b
-- 3 | 8 | c
