-- A decimal with more digits before and behind the point
CREATE TABLE t (id int PRIMARY KEY, n decimal(12, 2));
INSERT INTO t VALUES (1, 10.25), (2, 20);
-- captured
ALTER TABLE t MODIFY n decimal(16, 4);
INSERT INTO t VALUES (3, 30.1234);
-- rows t: id | n
-- 1 | 10.2500
-- 2 | 20.0000
-- 3 | 30.1234
