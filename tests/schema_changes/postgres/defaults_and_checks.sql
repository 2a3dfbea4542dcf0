-- What only concerns rows to come
CREATE TABLE t (id int PRIMARY KEY, v text, n int);
INSERT INTO t VALUES (1, 'a', 1);
-- captured
ALTER TABLE t ALTER COLUMN v SET DEFAULT 'd', ALTER COLUMN n SET NOT NULL, ADD CHECK (n > 0);
INSERT INTO t (id, n) VALUES (2, 2);
ALTER TABLE t ALTER COLUMN v DROP DEFAULT, ALTER COLUMN n DROP NOT NULL;
INSERT INTO t (id) VALUES (3);
COMMENT ON COLUMN t.v IS 'a comment';
-- rows t: id | n | v
-- 1 | 1 | a
-- 2 | 2 | d
-- 3 | None | None
