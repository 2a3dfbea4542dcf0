-- REPLACE deletes and inserts, or updates
CREATE TABLE t (id int PRIMARY KEY, v varchar(5) DEFAULT 'd', u int UNIQUE);
INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3);
-- captured
REPLACE INTO t (id, u) VALUES (1, 1);
REPLACE INTO t VALUES (5, 'x', 2);
INSERT INTO t VALUES (3, 'y', 9) ON DUPLICATE KEY UPDATE v = 'z', u = 8;
INSERT IGNORE INTO t VALUES (3, 'n', 1);
-- rows t: id | u | v
-- 1 | 1 | d
-- 3 | 8 | z
-- 5 | 2 | x
