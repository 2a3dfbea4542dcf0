-- An enum gets labels before and behind
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TABLE t (id int PRIMARY KEY, m mood);
INSERT INTO t VALUES (1, 'sad');
-- captured
ALTER TYPE mood ADD VALUE 'angry' BEFORE 'sad';
ALTER TYPE mood ADD VALUE 'glad';
INSERT INTO t VALUES (2, 'angry'), (3, 'glad');
-- rows t: id | m
-- 1 | sad
-- 2 | angry
-- 3 | glad
