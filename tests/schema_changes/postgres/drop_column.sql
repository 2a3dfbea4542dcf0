-- A column is dropped
CREATE TABLE t (id int PRIMARY KEY, v text, old text);
INSERT INTO t VALUES (1, 'a', 'x'), (2, 'b', 'y');
-- captured
ALTER TABLE t DROP COLUMN old;
INSERT INTO t VALUES (3, 'c');
-- notice t: columns dropped: old
-- rows t: id | v
-- 1 | a
-- 2 | b
-- 3 | c
