-- The default is computed for the rows that are there
CREATE TABLE t (id int PRIMARY KEY, v varchar(20));
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
ALTER TABLE t ADD COLUMN n varchar(40) DEFAULT (concat('x', 1 + 1));
INSERT INTO t (id, v) VALUES (3, 'c');
-- rows t: id | n | v
-- 1 | x2 | a
-- 2 | x2 | b
-- 3 | x2 | c
