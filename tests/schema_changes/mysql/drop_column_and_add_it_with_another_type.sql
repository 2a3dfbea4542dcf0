-- A column comes back by the same name with another type
CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t VALUES (1, 10), (2, 20);
-- captured
ALTER TABLE t DROP COLUMN v, ADD COLUMN w varchar(10);
ALTER TABLE t CHANGE w v varchar(10) DEFAULT 'x';
INSERT INTO t VALUES (3, 'y');
-- rows t: id | v
-- 1 | None
-- 2 | None
-- 3 | y
