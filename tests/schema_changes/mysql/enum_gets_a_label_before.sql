-- An enum's labels get other numbers
CREATE TABLE t (id int PRIMARY KEY, m enum('sad', 'happy'));
INSERT INTO t VALUES (1, 'sad'), (2, 'happy');
-- captured
ALTER TABLE t MODIFY m enum('angry', 'happy', 'sad');
INSERT INTO t VALUES (3, 'angry');
UPDATE t SET m = 'happy' WHERE id = 1;
-- rows t: id | m
-- 1 | happy
-- 2 | happy
-- 3 | angry
