-- A session logs only what changes: refused, and dumped again once it no longer does
CREATE TABLE t (id int PRIMARY KEY, v int, w varchar(5) DEFAULT 'w');
INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b');
-- captured
SET SESSION binlog_row_image = MINIMAL;
UPDATE t SET v = 10 WHERE id = 1;
UPDATE t SET id = 5 WHERE id = 2;
INSERT INTO t (id) VALUES (7);
DELETE FROM t WHERE id = 1;
-- notice t: the log lacks columns
-- released t
-- rows t: id | v | w
-- 5 | 2 | b
-- 7 | None | w
