-- A column takes the one name that the lake needs
CREATE TABLE t (id int PRIMARY KEY, v varchar(5));
INSERT INTO t VALUES (1, 'a');
-- captured
ALTER TABLE t ADD COLUMN _cdc varchar(5);
INSERT INTO t VALUES (2, 'b', 'c');
-- quarantined t: _cdc
