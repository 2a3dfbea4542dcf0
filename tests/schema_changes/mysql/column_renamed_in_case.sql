-- A column's name changes only in case
CREATE TABLE t (id int PRIMARY KEY, `Value` varchar(5));
INSERT INTO t VALUES (1, 'a');
-- captured
ALTER TABLE t CHANGE `Value` value varchar(5);
INSERT INTO t VALUES (2, 'b');
-- rows t: id | value
-- 1 | a
-- 2 | b
