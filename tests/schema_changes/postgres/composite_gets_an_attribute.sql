-- A composite type that a column has gets another attribute
CREATE TYPE address AS (street text, town text);
CREATE TABLE t (id int PRIMARY KEY, a address);
INSERT INTO t VALUES (1, ROW('High Street', 'London'));
-- captured
ALTER TYPE address ADD ATTRIBUTE zip text;
INSERT INTO t VALUES (2, ROW('Main Street', 'Boston', '02101'));
-- notice t: a composite type of a column changed
-- rows t: a | id
-- ("High Street",London,) | 1
-- ("Main Street",Boston,02101) | 2
