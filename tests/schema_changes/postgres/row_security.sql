-- Policies hide rows from others, not from the agent
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
-- captured
ALTER TABLE t ENABLE ROW LEVEL SECURITY;
CREATE POLICY first_only ON t USING (id = 1);
INSERT INTO t VALUES (2, 'b');
-- rows t: id | v
-- 1 | a
-- 2 | b
