-- timestamptz becomes timestamp
CREATE TABLE t (id int PRIMARY KEY, at timestamptz);
INSERT INTO t VALUES (1, '2026-01-02 03:04:05+00');
-- captured
ALTER TABLE t ALTER COLUMN at TYPE timestamp USING at AT TIME ZONE 'Europe/Berlin';
INSERT INTO t VALUES (2, '2026-01-02 03:04:05');
-- rows t: at | id
-- 2026-01-02 03:04:05 | 2
-- 2026-01-02 04:04:05 | 1
