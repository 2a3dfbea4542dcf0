-- The agent's role on PostgreSQL, with the rights it needs and no others: it reads, it replicates, it owns
-- nothing. A superuser runs this once, in the database that is captured:
--
--   psql -d shop -v ON_ERROR_STOP=1 --single-transaction -f postgres.sql
--
-- Replace these names first:
--   deltatide        the role, as in source.url
--   shop             the database; deltatide_shop: source.publication, by default "deltatide_" and source.name
--   public           the schema that is captured; with several, repeat what names it
--
-- Then `deltatide check` reports nothing but "ok". Where something is missing, or is taken away later, it prints
-- the statement that grants it.

-- No password here: without one nobody can log in. Set it in psql by \password deltatide, which sends a hash.
--
-- REPLICATION is for the log, by a slot that the agent creates and moves. It would also let the role copy the
-- whole server (pg_basebackup): pg_hba.conf must have no line for the database "replication" that matches it,
-- and for its own database one line, with TLS:   hostssl shop deltatide 10.0.0.0/8 scram-sha-256
CREATE ROLE deltatide LOGIN REPLICATION;

GRANT CONNECT ON DATABASE shop TO deltatide;
GRANT USAGE ON SCHEMA public TO deltatide;

-- What is captured, and nothing else. Name the tables instead if the schema has others:
--   GRANT SELECT ON public.orders, public.items TO deltatide;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO deltatide;

-- Tables to come, if the role that runs this creates them; for those of another one, add FOR ROLE and its name.
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO deltatide;

-- Dumps hold back while other sessions or standbys suffer, which only this right shows ([limits]). It shows the
-- statements of other sessions, too. A dump's condition can't ask for them, unless a function of yours that it
-- may call does, and is declared stable. Without this right, `deltatide check` says what is not measured.
GRANT pg_read_all_stats TO deltatide;

-- The publication belongs to who runs this, so the agent can't change which tables the log carries. It names
-- tables with a primary key and a replica identity: in a publication, one without would refuse its UPDATEs. One
-- that is created later is quarantined until it is added, by the statement that `deltatide status` shows:
--   ALTER PUBLICATION deltatide_shop ADD TABLE ONLY public.new_table;
--
-- If the agent shall do that by itself, let its role own the publication and be a member of the tables' owners.
-- That is the right to change and drop these tables.
DO $$
DECLARE
    tables text;
BEGIN
    SELECT string_agg(format('ONLY %I.%I', n.nspname, c.relname), ', ') INTO STRICT tables
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
        AND EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate)
        -- Neither it nor a partition of it lacks a replica identity.
        AND NOT EXISTS (
            SELECT FROM pg_class part
            WHERE (part.oid = c.oid OR part.oid IN (SELECT relid FROM pg_partition_tree(c.oid)))
                AND part.relreplident <> 'f'
                AND NOT EXISTS (
                    SELECT FROM pg_index i
                    WHERE i.indrelid = part.oid AND i.indimmediate
                        AND CASE part.relreplident WHEN 'd' THEN i.indisprimary
                                                   WHEN 'i' THEN i.indisreplident ELSE false END));
    EXECUTE 'CREATE PUBLICATION deltatide_shop' || coalesce(' FOR TABLE ' || tables, '')
        || ' WITH (publish_via_partition_root = true)';
END $$;

-- Not granted, and not needed: SUPERUSER, CREATE on the database, pg_read_server_files,
-- pg_execute_server_program, EXECUTE on dblink. Under row-level security on a captured table, `deltatide check`
-- asks for BYPASSRLS. The database's settings (wal_level = logical) are checked, too, with what changes them.
