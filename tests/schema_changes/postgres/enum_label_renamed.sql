-- A label is renamed: every row that has it changes
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TABLE t (id int PRIMARY KEY, m mood, ms mood[]);
INSERT INTO t VALUES (1, 'sad', '{sad}'), (2, 'happy', '{happy,sad}');
-- captured
ALTER TYPE mood RENAME VALUE 'sad' TO 'unhappy';
INSERT INTO t VALUES (3, 'unhappy', '{}');
-- notice t: the labels of an enum changed
-- rows t: id | m | ms
-- 1 | unhappy | {unhappy}
-- 2 | happy | {happy,unhappy}
-- 3 | unhappy | {}
