-- Storage and compression are nothing that the lake knows
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, repeat('long ', 2000));
-- captured
ALTER TABLE t ALTER COLUMN v SET STORAGE EXTERNAL;
INSERT INTO t VALUES (2, repeat('longer ', 2000));
ALTER TABLE t SET (fillfactor = 50);
UPDATE t SET id = 3 WHERE id = 1;
