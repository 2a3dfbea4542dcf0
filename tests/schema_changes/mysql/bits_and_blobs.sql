-- A bit field gets wider, a blob longer
CREATE TABLE t (id int PRIMARY KEY, b bit(4), d tinyblob);
INSERT INTO t VALUES (1, b'1010', x'0001');
-- captured
ALTER TABLE t MODIFY b bit(12), MODIFY d longblob;
INSERT INTO t VALUES (2, b'101010101010', repeat(x'FF', 300));
