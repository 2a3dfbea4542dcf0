-- A table is dropped: it is captured no longer
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE u (id int PRIMARY KEY);
INSERT INTO t VALUES (1, 'a');
-- captured
DROP TABLE t;
INSERT INTO u VALUES (1);
-- notice t: is no longer captured
-- gone t
-- rows u: id
-- 1
