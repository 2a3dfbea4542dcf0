-- A delete leads to others
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE u (id int PRIMARY KEY, t_id int REFERENCES t ON DELETE CASCADE ON UPDATE CASCADE);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
INSERT INTO u VALUES (1, 1), (2, 2);
-- captured
DELETE FROM t WHERE id = 1;
UPDATE t SET id = 7 WHERE id = 2;
-- rows t: id | v
-- 7 | b
-- rows u: id | t_id
-- 2 | 7
