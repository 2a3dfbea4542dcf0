-- Columns come and go until no number is where it was
CREATE TABLE t (a int, id int PRIMARY KEY, b text, c text);
INSERT INTO t VALUES (1, 1, 'b', 'c'), (2, 2, 'b', 'c');
-- captured
ALTER TABLE t DROP COLUMN a;
ALTER TABLE t ADD COLUMN d text DEFAULT 'd', DROP COLUMN b;
INSERT INTO t VALUES (3, 'c3', 'd3');
ALTER TABLE t DROP COLUMN c, ADD COLUMN a text;
INSERT INTO t VALUES (4, 'd4', 'a4');
-- rows t: a | d | id
-- None | d | 1
-- None | d | 2
-- None | d3 | 3
-- a4 | d4 | 4
