-- The agent's user on MariaDB, with the rights it needs and no others. A user with CREATE USER and GRANT OPTION
-- runs this once on the primary, from where it replicates:
--
--   mariadb < mariadb.sql
--
-- Replace these names first:
--   deltatide        the user, as in source.url (not the database of that name, in the last statement)
--   shop             the database that is captured, with a backslash before each _ and %, which here stand for
--                    any characters: `my\_shop`; with several databases, repeat the statement that names it
--
-- Then `deltatide check` reports nothing but "ok" about rights. Where one is missing, or is taken away later, it
-- prints the statement that grants it.

-- Locked, so no password is in a file. To open it, type:
--   ALTER USER deltatide IDENTIFIED BY '...' ACCOUNT UNLOCK;
-- The server lets this user in by TLS alone; let the agent check whom it talks to, by
--   source.url = "mysql://deltatide:${MYSQL_PWD}@db.example.com:3306?ssl_mode=verify_identity&ssl_ca=/etc/ssl/ca.pem"
CREATE USER deltatide REQUIRE SSL ACCOUNT LOCK;

-- What is captured, and nothing else. Name the tables instead if the database has others, in a name of a
-- database without backslashes: GRANT SELECT ON shop.orders TO deltatide.
GRANT SELECT ON `shop`.* TO deltatide;

-- Only for tables with VIRTUAL columns and triggers: to see whether a trigger changes what the columns are made
-- of, for which the server may log former values. This right also lets the user create triggers, which run with
-- its own few rights. Tables without virtual columns need none.
--   GRANT TRIGGER ON shop.orders TO deltatide;

-- The binary log, its list of files and its end, and whether the server is itself a replica.
-- The log holds the changes of all databases; the agent keeps those of captured tables.
GRANT REPLICATION SLAVE, BINLOG MONITOR, REPLICA MONITOR ON *.* TO deltatide;

-- InnoDB's table ids: after a crash of the server only tables that it emptied are dumped again, not all. This
-- right also shows what other sessions run, to the agent alone: a dump's condition can't ask for it.
GRANT PROCESS ON *.* TO deltatide;

-- A small table of the agent, in a database of its own, which it creates: where the log began, and a row that
-- it writes to before it reads a chunk of a dump.
GRANT CREATE, SELECT, INSERT, UPDATE ON deltatide.* TO deltatide;

-- Not granted, and not needed: FILE, EXECUTE, SUPER, RELOAD, any right to change captured tables.
