-- A column is renamed: its values are there under the new name
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
ALTER TABLE t RENAME COLUMN v TO w;
INSERT INTO t VALUES (3, 'c');
-- notice t: columns added: w
-- notice t: columns dropped: v
-- rows t: id | w
-- 1 | a
-- 2 | b
-- 3 | c
