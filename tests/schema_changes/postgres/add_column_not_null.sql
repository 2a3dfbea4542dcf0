-- A column that must not be null is added with a default
CREATE TABLE t (id int PRIMARY KEY);
INSERT INTO t VALUES (1), (2);
-- captured
ALTER TABLE t ADD COLUMN state varchar(10) NOT NULL DEFAULT 'new';
UPDATE t SET state = 'old' WHERE id = 1;
-- notice t: columns added: state
-- rows t: id | state
-- 1 | old
-- 2 | new
