-- Rows are numbered
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (10, 'a'), (20, 'b');
-- captured
ALTER TABLE t ADD COLUMN n int NOT NULL AUTO_INCREMENT UNIQUE;
INSERT INTO t (id, v) VALUES (30, 'c');
-- rows t: id | n | v
-- 10 | 1 | a
-- 20 | 2 | b
-- 30 | 3 | c
