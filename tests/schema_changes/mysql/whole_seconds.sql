-- datetime(6) becomes datetime(0)
CREATE TABLE t (id int PRIMARY KEY, at datetime(6));
INSERT INTO t VALUES (1, '2026-01-02 03:04:05.678'), (2, '2026-01-02 03:04:05.1');
-- captured
ALTER TABLE t MODIFY at datetime;
INSERT INTO t VALUES (3, '2026-01-02 03:04:05');
