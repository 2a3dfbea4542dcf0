-- CHANGE renames and widens at once
CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t VALUES (1, 10), (2, 20);
-- captured
ALTER TABLE t CHANGE v w bigint NOT NULL;
INSERT INTO t VALUES (3, 5000000000);
-- rows t: id | w
-- 1 | 10
-- 2 | 20
-- 3 | 5000000000
