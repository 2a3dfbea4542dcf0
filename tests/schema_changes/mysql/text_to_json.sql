-- A text becomes a document
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, '{"b": 1,   "a": 2}');
-- captured
ALTER TABLE t MODIFY v json;
INSERT INTO t VALUES (2, '[1, 2.5, null]');
