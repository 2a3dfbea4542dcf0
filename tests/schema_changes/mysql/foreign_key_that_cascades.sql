-- A foreign key whose effects the log does not tell
-- only mariadb
CREATE TABLE t (id int PRIMARY KEY, v varchar(5));
CREATE TABLE u (id int PRIMARY KEY, t_id int);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
INSERT INTO u VALUES (1, 1), (2, 2);
-- captured
ALTER TABLE u ADD FOREIGN KEY (t_id) REFERENCES t (id) ON DELETE CASCADE;
DELETE FROM t WHERE id = 1;
-- quarantined u: CASCADE
-- rows t: id | v
-- 2 | b
