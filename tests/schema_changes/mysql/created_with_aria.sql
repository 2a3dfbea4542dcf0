-- A table is made with MariaDB's own engine without transactions
-- only mariadb
CREATE TABLE u (id int PRIMARY KEY);
-- captured
CREATE TABLE t (id int PRIMARY KEY, v varchar(5)) ENGINE = Aria;
INSERT INTO t VALUES (1, 'a');
-- quarantined t: Aria
-- rows u: id
