"""Schema changes as data: SQL scripts that alter tables while they are captured.

`postgres/` and `mysql/` hold one script per case; `tests/integration/test_schema_changes.py` runs them all. A
script is

::

    -- What happens, in one line
    CREATE TABLE t (id int PRIMARY KEY, v text);
    -- captured
    ALTER TABLE t ADD COLUMN n int DEFAULT 7;
    INSERT INTO t VALUES (1, 'a', 8);
    -- notice t: columns added: n
    -- rows t: id | v | n
    -- 1 | a | 8

Statements before ``-- captured`` run before the agent starts, each of the others in a step of its own;
``BEGIN;`` to ``COMMIT;`` or ``ROLLBACK;`` is one step. What a script may say besides:

``-- rows TABLE: columns``, a line per row      what the source holds at the end, as its own text
``-- notice TABLE: text``                       a notice in the manifests holds this text, or one of a | b
``-- quarantined TABLE: text``                  it ends quarantined, for a reason that holds this text
``-- gone TABLE``                               it is no longer captured at the end
``-- released TABLE``                           it may be quarantined on the way; a full dump releases it
``-- only KIND``, ``-- since RELEASE``          which servers the script is for

Each script has a schema (PostgreSQL) or a database of its own, named after it. ``$NAMESPACE`` stands for its
name. No script may log changes as statements: MariaDB's tables would all be dumped again, and that would hide
what capture missed in other scripts (`tests/integration/mysql/log/test_statements.py` has those cases).
"""
