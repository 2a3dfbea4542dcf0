-- An interval loses its small units
CREATE TABLE t (id int PRIMARY KEY, v interval);
INSERT INTO t VALUES (1, '1 day 02:03:04.5'), (2, NULL);
-- captured
ALTER TABLE t ALTER COLUMN v TYPE interval hour to minute;
INSERT INTO t VALUES (3, '1 hour');
-- rows t: id | v
-- 1 | 1 day 02:03:00
-- 2 | None
-- 3 | 01:00:00
