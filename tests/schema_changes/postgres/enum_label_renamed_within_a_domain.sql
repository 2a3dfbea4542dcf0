-- A label is renamed in the type under a domain
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN feeling AS mood;
CREATE TABLE t (id int PRIMARY KEY, m feeling);
INSERT INTO t VALUES (1, 'sad'), (2, 'happy');
-- captured
ALTER TYPE mood RENAME VALUE 'sad' TO 'unhappy';
-- rows t: id | m
-- 1 | unhappy
-- 2 | happy
