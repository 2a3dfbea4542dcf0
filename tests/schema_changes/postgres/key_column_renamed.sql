-- A column of the key is renamed
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
-- captured
ALTER TABLE t RENAME COLUMN id TO number;
INSERT INTO t VALUES (2, 'b');
-- quarantined t: key
