-- A table is made with an engine that can't be captured exactly
CREATE TABLE u (id int PRIMARY KEY);
-- captured
CREATE TABLE t (id int PRIMARY KEY, v varchar(5)) ENGINE = MyISAM;
INSERT INTO t VALUES (1, 'a');
-- quarantined t: MyISAM
-- rows u: id
