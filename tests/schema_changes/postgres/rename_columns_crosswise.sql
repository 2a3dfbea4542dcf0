-- Two columns of one type change their names
CREATE TABLE t (id int PRIMARY KEY, a text, b text);
INSERT INTO t VALUES (1, 'a1', 'b1'), (2, 'a2', 'b2');
-- captured
ALTER TABLE t RENAME COLUMN a TO tmp;
ALTER TABLE t RENAME COLUMN b TO a;
ALTER TABLE t RENAME COLUMN tmp TO b;
INSERT INTO t VALUES (3, 'b3', 'a3');
-- rows t: a | b | id
-- a3 | b3 | 3
-- b1 | a1 | 1
-- b2 | a2 | 2
