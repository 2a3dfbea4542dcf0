-- One statement changes two tables
CREATE TABLE t (id int PRIMARY KEY, v int);
CREATE TABLE u (id int PRIMARY KEY, v int);
INSERT INTO t VALUES (1, 1), (2, 2);
INSERT INTO u VALUES (1, 1), (2, 2);
-- captured
UPDATE t, u SET t.v = 10, u.v = 20 WHERE t.id = u.id AND t.id = 1;
DELETE t, u FROM t JOIN u USING (id) WHERE id = 2;
-- rows t: id | v
-- 1 | 10
-- rows u: id | v
-- 1 | 20
