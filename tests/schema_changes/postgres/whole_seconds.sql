-- timestamp(0) rounds
CREATE TABLE t (id int PRIMARY KEY, at timestamp);
INSERT INTO t VALUES (1, '2026-01-02 03:04:05.678'), (2, '2026-01-02 03:04:05.1');
-- captured
ALTER TABLE t ALTER COLUMN at TYPE timestamp(0);
INSERT INTO t VALUES (3, '2026-01-02 03:04:05');
-- rows t: at | id
-- 2026-01-02 03:04:05 | 2
-- 2026-01-02 03:04:05 | 3
-- 2026-01-02 03:04:06 | 1
