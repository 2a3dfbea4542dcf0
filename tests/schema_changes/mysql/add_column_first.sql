-- A column is added before all others
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
ALTER TABLE t ADD COLUMN n int DEFAULT 5 FIRST;
INSERT INTO t VALUES (8, 3, 'c');
-- notice t: columns added: n
-- rows t: id | n | v
-- 1 | 5 | a
-- 2 | 5 | b
-- 3 | 8 | c
