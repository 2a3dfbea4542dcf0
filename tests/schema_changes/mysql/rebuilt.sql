-- A table is rewritten with the same rows
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- captured
DELETE FROM t WHERE id = 1;
ALTER TABLE t ENGINE = InnoDB;
INSERT INTO t VALUES (3, 'c');
OPTIMIZE TABLE t;
ALTER TABLE t ROW_FORMAT = COMPRESSED, FORCE;
INSERT INTO t VALUES (4, 'd');
-- rows t: id | v
-- 2 | b
-- 3 | c
-- 4 | d
