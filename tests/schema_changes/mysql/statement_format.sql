-- A session logs statements in place of rows
CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t VALUES (1, 1), (2, 2);
-- captured
SET SESSION binlog_format = STATEMENT;
UPDATE t SET v = v + 10;
SET SESSION binlog_format = ROW;
INSERT INTO t VALUES (3, 3);
-- quarantined t: statement format
