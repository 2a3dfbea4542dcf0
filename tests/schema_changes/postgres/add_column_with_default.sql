-- A column with a constant default is added: no row is rewritten, all rows have its value
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
ALTER TABLE t ADD COLUMN n int DEFAULT 7;
INSERT INTO t VALUES (3, 'c', 8);
-- notice t: columns added: n
-- rows t: id | n | v
-- 1 | 7 | a
-- 2 | 7 | b
-- 3 | 8 | c
