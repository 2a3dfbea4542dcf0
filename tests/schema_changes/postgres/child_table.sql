-- A child's rows are its own
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
-- captured
CREATE TABLE child (n int, PRIMARY KEY (id)) INHERITS (t);
INSERT INTO child VALUES (7, 'child', 1);
INSERT INTO t VALUES (2, 'b');
UPDATE t SET v = v || '!';
-- rows child: id | n | v
-- 7 | 1 | child!
-- rows t: id | v
-- 1 | a!
-- 2 | b!
