-- REPLACE resets what the log does not carry
CREATE TABLE t (id int PRIMARY KEY, v int DEFAULT 7, w varchar(5));
INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b');
-- captured
SET SESSION binlog_row_image = MINIMAL;
REPLACE INTO t (id, w) VALUES (1, 'c');
-- notice t: the log lacks columns
-- released t
-- rows t: id | v | w
-- 1 | 7 | c
-- 2 | 2 | b
