-- A key that may be violated for a moment
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
-- captured
ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id) DEFERRABLE;
INSERT INTO t VALUES (2, 'b');
-- quarantined t: deferrable
