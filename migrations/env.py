"""Alembic environment. Run by scheduler/store/migrate.py at start, on the connection that it hands in; there is no ini file.

To write a migration: copy the newest file of versions/, give it the next number, change scheduler/store/tables.py and
its SCHEMA, and run tests/migration, which compares the two. Prefer ADD COLUMN to re-creating a table. Where a table must
be re-created (op.batch_alter_table), pass table_kwargs={"sqlite_autoincrement": True} if its numbers are never given
twice: reflection does not see that, and carry its row of sqlite_sequence over.
"""

from alembic import context

from scheduler.store.tables import metadata


def run() -> None:
    """Run the missing migrations, each in a transaction of its own (SQLite's DDL is transactional)."""
    config = context.config
    connection = config.attributes.get("connection")
    if connection is None:
        raise RuntimeError("migrations run when the daemon opens its database; there is no separate command")
    context.configure(
        connection=connection,
        target_metadata=metadata,
        transaction_per_migration=True,
        transactional_ddl=True,
        render_as_batch=True,
        on_version_apply=config.attributes["on_version_apply"],
    )
    with context.begin_transaction():
        context.run_migrations()


run()
