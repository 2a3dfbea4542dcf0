-- char(8) becomes char(4): values lose their blanks and their ends
CREATE TABLE t (id int PRIMARY KEY, v char(8));
INSERT INTO t VALUES (1, 'abcdefgh'), (2, 'ab');
-- captured
ALTER TABLE t ALTER COLUMN v TYPE char(4) USING left(v::text, 4);
INSERT INTO t VALUES (3, 'xy');
-- rows t: id | v
-- 1 | abcd
-- 2 | ab
-- 3 | xy
