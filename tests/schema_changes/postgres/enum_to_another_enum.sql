-- A column takes another enum
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TYPE level AS ENUM ('low', 'high');
CREATE TABLE t (id int PRIMARY KEY, m mood);
INSERT INTO t VALUES (1, 'sad'), (2, 'happy');
-- captured
ALTER TABLE t ALTER COLUMN m TYPE level USING (CASE m WHEN 'sad' THEN 'low' ELSE 'high' END)::level;
INSERT INTO t VALUES (3, 'low');
-- rows t: id | m
-- 1 | low
-- 2 | high
-- 3 | low
