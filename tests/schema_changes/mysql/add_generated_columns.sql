-- Generated columns, kept and computed
CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t VALUES (1, 10), (2, 20);
-- captured
ALTER TABLE t ADD COLUMN twice int GENERATED ALWAYS AS (v * 2) STORED;
ALTER TABLE t ADD COLUMN thrice int GENERATED ALWAYS AS (v * 3) VIRTUAL;
INSERT INTO t (id, v) VALUES (3, 30);
UPDATE t SET v = 11 WHERE id = 1;
-- notice t: columns added: twice
-- notice t: columns added: thrice
-- rows t: id | v
-- 1 | 11
-- 2 | 20
-- 3 | 30
