-- Names that must be quoted
CREATE TABLE "T. x" ("i""d" int PRIMARY KEY, "a b" text);
INSERT INTO "T. x" VALUES (1, 'a');
-- captured
ALTER TABLE "T. x" ADD COLUMN "ä.ö" text DEFAULT 'ü';
INSERT INTO "T. x" VALUES (2, 'b', 'c');
ALTER TABLE "T. x" RENAME COLUMN "a b" TO "a;b";
-- rows T. x: a;b | i"d | ä.ö
-- a | 1 | ü
-- b | 2 | c
