-- A date becomes a datetime
CREATE TABLE t (id int PRIMARY KEY, at date);
INSERT INTO t VALUES (1, '2026-01-02');
-- captured
ALTER TABLE t MODIFY at datetime;
INSERT INTO t VALUES (2, '2026-01-02 03:04:05');
-- rows t: at | id
-- 2026-01-02 00:00:00 | 1
-- 2026-01-02 03:04:05 | 2
