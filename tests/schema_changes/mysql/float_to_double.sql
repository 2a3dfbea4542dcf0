-- A float is widened
CREATE TABLE t (id int PRIMARY KEY, v float);
INSERT INTO t VALUES (1, 1.5), (2, NULL);
-- captured
ALTER TABLE t MODIFY v double;
INSERT INTO t VALUES (3, 1.1);
-- rows t: id | v
-- 1 | 1.5
-- 2 | None
-- 3 | 1.1
