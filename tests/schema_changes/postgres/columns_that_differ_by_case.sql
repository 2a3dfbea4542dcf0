-- Two columns that the lake can't tell apart
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
-- captured
ALTER TABLE t ADD COLUMN "V" text;
INSERT INTO t VALUES (2, 'b', 'c');
-- quarantined t: case
