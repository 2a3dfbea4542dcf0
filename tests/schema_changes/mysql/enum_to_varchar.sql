-- An enum becomes a text
CREATE TABLE t (id int PRIMARY KEY, m enum('sad', 'happy'));
INSERT INTO t VALUES (1, 'sad'), (2, 'happy');
-- captured
ALTER TABLE t MODIFY m varchar(20);
INSERT INTO t VALUES (3, 'neither');
-- rows t: id | m
-- 1 | sad
-- 2 | happy
-- 3 | neither
