-- A default that must be computed rewrites the table
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE SEQUENCE numbers START 100;
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
ALTER TABLE t ADD COLUMN n bigint DEFAULT nextval('numbers');
INSERT INTO t VALUES (3, 'c', 8);
-- notice t: columns added: n
-- rows t: id | n | v
-- 1 | 100 | a
-- 2 | 101 | b
-- 3 | 8 | c
