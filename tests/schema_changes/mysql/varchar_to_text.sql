-- Text and varchar are the same in the lake
CREATE TABLE t (id int PRIMARY KEY, v varchar(10));
INSERT INTO t VALUES (1, 'abc');
-- captured
ALTER TABLE t MODIFY v mediumtext;
INSERT INTO t VALUES (2, repeat('long ', 100));
