-- Two tables of one layout change places
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE u (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'of t');
INSERT INTO u VALUES (1, 'of u'), (2, 'of u');
-- captured
BEGIN;
ALTER TABLE t RENAME TO tmp;
ALTER TABLE u RENAME TO t;
ALTER TABLE tmp RENAME TO u;
COMMIT;
INSERT INTO t VALUES (3, 'new of t');
INSERT INTO u VALUES (3, 'new of u');
-- notice t: it, or part of it, was missing from the publication
-- notice u: it, or part of it, was missing from the publication
-- rows t: id | v
-- 1 | of u
-- 2 | of u
-- 3 | new of t
-- rows u: id | v
-- 1 | of t
-- 3 | new of u
