-- A text becomes bytes
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'abc'), (2, NULL);
-- captured
ALTER TABLE t ALTER COLUMN v TYPE bytea USING convert_to(v, 'UTF8');
INSERT INTO t VALUES (3, '\x0001');
-- rows t: id | v
-- 1 | b'abc'
-- 2 | None
-- 3 | b'\x00\x01'
