-- A table loses its key
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
-- captured
ALTER TABLE t DROP CONSTRAINT t_pkey;
INSERT INTO t VALUES (2, 'b');
-- quarantined t: key
