-- Names that must be quoted
CREATE TABLE `T. x` (`i"d` int PRIMARY KEY, `a b` varchar(5));
INSERT INTO `T. x` VALUES (1, 'a');
-- captured
ALTER TABLE `T. x` ADD COLUMN `ä.ö` varchar(5) DEFAULT 'ü';
INSERT INTO `T. x` VALUES (2, 'b', 'c');
ALTER TABLE `T. x` RENAME COLUMN `a b` TO `a;b`;
-- rows T. x: ä.ö | a;b | i"d
-- c | b | 2
-- ü | a | 1
