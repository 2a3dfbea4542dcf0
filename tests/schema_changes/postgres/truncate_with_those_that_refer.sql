-- Two tables are emptied at once
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE u (id int PRIMARY KEY, t_id int REFERENCES t);
INSERT INTO t VALUES (1, 'a');
INSERT INTO u VALUES (1, 1);
-- captured
TRUNCATE t CASCADE;
INSERT INTO t VALUES (5, 'e');
-- rows t: id | v
-- 5 | e
-- rows u: id | t_id
