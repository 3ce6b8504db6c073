"""Bring an older database to the present schema, one transaction per migration, after a backup."""

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from scheduler.domain.errors import Permanent
from scheduler.ports.clock import Clock
from scheduler.store.backup import save_backup
from scheduler.store.failures import translate
from scheduler.store.tables import APPLICATION_ID

if TYPE_CHECKING:
    from alembic.config import Config


def scripts_folder() -> Path:
    """Where the migrations are, in a checkout as in an installed wheel."""
    import migrations  # only a database that must change pays for it

    return Path(next(iter(migrations.__path__)))


def migrate(engine: Engine, path: Path, schema: int, clock: Clock, scripts: Path | None = None) -> None:
    """Run the missing migrations on ``path``, whose present schema number is ``schema`` (0 = empty, needs no backup).

    Raises Permanent (``store_migration``) when one fails; the database is then as the last good one left it. A full
    disk and the like raise their own codes.
    """
    if schema > 0:
        save_backup(path, schema, clock)
    from alembic import command  # 0.1 s of import, not needed when the schema is up to date

    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        # Outside a transaction, or it has no effect: with foreign keys on, Alembic's re-creation of a table drops the
        # old one and takes the children with it.
        driver.execute("PRAGMA foreign_keys = OFF")
        config = _config(scripts or scripts_folder())
        config.attributes["connection"] = connection
        config.attributes["on_version_apply"] = _seal
        try:
            command.upgrade(config, "head")
        except Exception as error:
            raise _failure(error, path, schema) from error
        finally:
            connection.invalidate()  # never back into use with foreign keys off


def _config(scripts: Path) -> "Config":
    from alembic.config import Config  # see above

    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    return config


def _seal(*, ctx: Any, step: Any, **_: Any) -> None:
    """At the end of each migration, inside its transaction: no reference dangles, and the file says what it is."""
    connection = ctx.connection
    dangling = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
    if dangling:
        table, row, parent, _constraint = dangling[0]
        raise RuntimeError(f"{len(dangling)} rows lost what they refer to, first: {table} row {row} to {parent}")
    connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.exec_driver_sql(f"PRAGMA user_version = {int(step.up_revision_id)}")


def _failure(error: Exception, path: Path, schema: int) -> Exception:
    found = translate(error) if isinstance(error, DBAPIError | sqlite3.Error) else error
    if getattr(found, "code", "store_error") not in ("store_error", "store_constraint"):
        return found
    return Permanent(
        f"{path} could not be migrated from schema {schema}: {type(error).__name__}: {error}",
        code="store_migration",
        fix="nothing was changed; run the previous version, and report this with the message above",
    )
