-- A longer varchar changes nothing but what fits, across the 255 bytes of its length too
CREATE TABLE t (id int PRIMARY KEY, v varchar(3));
INSERT INTO t VALUES (1, 'abc');
-- captured
ALTER TABLE t MODIFY v varchar(20);
INSERT INTO t VALUES (2, 'abcdefgh');
ALTER TABLE t MODIFY v varchar(2000);
INSERT INTO t VALUES (3, repeat('x', 300));
