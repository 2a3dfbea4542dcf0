-- A text becomes bytes
CREATE TABLE t (id int PRIMARY KEY, v char(4), w varchar(4));
INSERT INTO t VALUES (1, 'abc', 'abc');
-- captured
ALTER TABLE t MODIFY v binary(4), MODIFY w varbinary(4);
INSERT INTO t VALUES (2, 'x', 'y');
-- rows t: id | v | w
-- 1 | b'abc\x00' | b'abc'
-- 2 | b'x\x00\x00\x00' | b'y'
