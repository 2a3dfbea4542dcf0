-- A table moves to an engine that can't be captured exactly
CREATE TABLE t (id int PRIMARY KEY, v varchar(5));
INSERT INTO t VALUES (1, 'a');
-- captured
ALTER TABLE t ENGINE = MyISAM;
INSERT INTO t VALUES (2, 'b');
-- quarantined t: MyISAM
