-- Two tables of one layout change places
CREATE TABLE t (id int PRIMARY KEY, v varchar(10));
CREATE TABLE u (id int PRIMARY KEY, v varchar(10));
INSERT INTO t VALUES (1, 'of t');
INSERT INTO u VALUES (1, 'of u'), (2, 'of u');
-- captured
RENAME TABLE t TO tmp, u TO t, tmp TO u;
INSERT INTO t VALUES (3, 'new of t');
INSERT INTO u VALUES (3, 'new of u');
-- notice t: RENAME TABLE: dumping it again
-- notice u: RENAME TABLE: dumping it again
-- rows t: id | v
-- 1 | of u
-- 2 | of u
-- 3 | new of t
-- rows u: id | v
-- 1 | of t
-- 3 | new of u
