-- A sign is taken away
CREATE TABLE t (id int PRIMARY KEY, y year, n int, b bigint);
INSERT INTO t VALUES (1, 2026, 10, 10), (2, 2025, 20, 20);
-- captured
ALTER TABLE t MODIFY n int unsigned, MODIFY b bigint unsigned;
INSERT INTO t VALUES (3, 2024, 4000000000, 18000000000000000000);
-- rows t: b | id | n | y
-- 10 | 1 | 10 | 2026
-- 18000000000000000000 | 3 | 4000000000 | 2024
-- 20 | 2 | 20 | 2025
