-- A timestamp becomes a datetime in the session's zone
CREATE TABLE t (id int PRIMARY KEY, at timestamp NULL);
INSERT INTO t VALUES (1, '2026-01-02 03:04:05');
-- captured
SET time_zone = '+05:00';
ALTER TABLE t MODIFY at datetime;
INSERT INTO t VALUES (2, '2026-01-02 03:04:05');
-- rows t: at | id
-- 2026-01-02 03:04:05 | 2
-- 2026-01-02 08:04:05 | 1
