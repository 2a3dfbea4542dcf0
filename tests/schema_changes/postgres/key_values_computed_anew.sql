-- The key keeps its type and every row gets another one
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
ALTER TABLE t ALTER COLUMN id TYPE int USING id + 1;
INSERT INTO t VALUES (4, 'd');
-- notice t: it was rewritten
-- rows t: id | v
-- 2 | a
-- 3 | b
-- 4 | d
