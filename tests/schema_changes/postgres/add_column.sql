-- A column without a default is added
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
ALTER TABLE t ADD COLUMN n int;
INSERT INTO t VALUES (3, 'c', 8);
UPDATE t SET n = 9 WHERE id = 1;
-- notice t: columns added: n
-- rows t: id | n | v
-- 1 | 9 | a
-- 2 | None | b
-- 3 | 8 | c
