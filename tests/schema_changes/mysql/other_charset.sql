-- Texts keep their characters and change their bytes
CREATE TABLE t (id int PRIMARY KEY, v varchar(10)) CHARACTER SET latin1;
INSERT INTO t VALUES (1, 'äöü'), (2, '€');
-- captured
ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4;
INSERT INTO t VALUES (3, '日本');
ALTER TABLE t MODIFY v varchar(10) CHARACTER SET utf16;
INSERT INTO t VALUES (4, 'ß');
-- rows t: id | v
-- 1 | äöü
-- 2 | €
-- 3 | 日本
-- 4 | ß
