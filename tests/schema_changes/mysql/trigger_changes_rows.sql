-- A trigger writes what the statement did not say
CREATE TABLE t (id int PRIMARY KEY, v varchar(5));
CREATE TABLE u (id int PRIMARY KEY, v varchar(5));
INSERT INTO t VALUES (1, 'a');
-- captured
CREATE TRIGGER shouting BEFORE INSERT ON t FOR EACH ROW SET new.v = upper(new.v);
CREATE TRIGGER copying AFTER INSERT ON t FOR EACH ROW INSERT INTO u VALUES (new.id, new.v);
INSERT INTO t VALUES (2, 'b');
-- rows t: id | v
-- 1 | a
-- 2 | B
-- rows u: id | v
-- 2 | B
