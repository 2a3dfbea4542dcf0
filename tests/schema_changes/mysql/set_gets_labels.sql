-- A set's labels get other bits
CREATE TABLE t (id int PRIMARY KEY, m set('a', 'b'));
INSERT INTO t VALUES (1, 'a'), (2, 'a,b');
-- captured
ALTER TABLE t MODIFY m set('c', 'b', 'a');
INSERT INTO t VALUES (3, 'a,c');
-- notice t: ALTER TABLE ... MODIFY: dumping it again
-- rows t: id | m
-- 1 | a
-- 2 | b,a
-- 3 | c,a
