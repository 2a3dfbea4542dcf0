-- The key changes: what the lake holds can't be carried on
CREATE TABLE t (area int, number int, v text, PRIMARY KEY (area, number));
INSERT INTO t VALUES (1, 1, 'a');
-- captured
ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (number);
INSERT INTO t VALUES (2, 2, 'b');
-- quarantined t: key
