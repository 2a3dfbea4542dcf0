-- A trigger writes what the statement did not say
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
-- captured
CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN new.v := upper(new.v); RETURN new; END';
CREATE TRIGGER shouting BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION shout();
INSERT INTO t VALUES (2, 'b');
UPDATE t SET v = v || 'x';
-- rows t: id | v
-- 1 | AX
-- 2 | BX
