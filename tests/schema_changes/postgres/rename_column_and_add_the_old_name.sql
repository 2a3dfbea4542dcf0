-- A column is renamed and another one takes its name
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
ALTER TABLE t RENAME COLUMN v TO w;
ALTER TABLE t ADD COLUMN v text DEFAULT 'new';
INSERT INTO t VALUES (3, 'c', 'c2');
-- rows t: id | v | w
-- 1 | new | a
-- 2 | new | b
-- 3 | c2 | c
