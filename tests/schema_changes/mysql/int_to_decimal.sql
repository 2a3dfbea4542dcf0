-- An integer becomes a decimal
CREATE TABLE t (id int PRIMARY KEY, n int);
INSERT INTO t VALUES (1, 10), (2, 20);
-- captured
ALTER TABLE t MODIFY n decimal(14, 2);
INSERT INTO t VALUES (3, 30.25);
-- rows t: id | n
-- 1 | 10.00
-- 2 | 20.00
-- 3 | 30.25
