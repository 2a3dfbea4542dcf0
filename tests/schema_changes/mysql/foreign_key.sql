-- A foreign key that changes no rows
CREATE TABLE t (id int PRIMARY KEY, v varchar(5));
CREATE TABLE u (id int PRIMARY KEY, t_id int);
INSERT INTO t VALUES (1, 'a');
INSERT INTO u VALUES (1, 1);
-- captured
ALTER TABLE u ADD FOREIGN KEY (t_id) REFERENCES t (id);
INSERT INTO u VALUES (2, 1);
-- rows t: id | v
-- 1 | a
-- rows u: id | t_id
-- 1 | 1
-- 2 | 1
