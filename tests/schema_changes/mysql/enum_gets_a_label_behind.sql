-- An enum gets a label at its end
CREATE TABLE t (id int PRIMARY KEY, m enum('sad', 'happy'));
INSERT INTO t VALUES (1, 'sad');
-- captured
ALTER TABLE t MODIFY m enum('sad', 'happy', 'glad');
INSERT INTO t VALUES (2, 'glad');
-- rows t: id | m
-- 1 | sad
-- 2 | glad
