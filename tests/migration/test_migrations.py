"""Migrations: a new database equals the tables, old databases open for ever, an interrupted migration changes nothing."""

import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, inspect

from scheduler.domain.errors import HotseatError
from scheduler.store import engine, migrate
from scheduler.store.backup import list_backups
from scheduler.store.engine import Database, open_database
from scheduler.store.tables import SCHEMA, metadata
from tests.migration.write_database import DATA, ROWS, SINCE, write
from tests.support.store_records import StillClock


def opened(path: Path) -> Database:
    return open_database(path, clock=StillClock(), mode="inline", durable=False)


def check_rows(path: Path, schema: int = SCHEMA) -> None:
    database = opened(path)
    newer = [item for since, rows in SINCE.items() if since <= schema for item in rows.items()]
    for name, (read, wanted) in [*ROWS.items(), *newer]:
        assert database.read_now(read) == wanted, name
    database.close()


# --- the migrations and the tables are the same ---------------------------------------------------------------------


TABLE = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?"
INDEXES = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL AND tbl_name = ?"


def anatomy(conn: Connection) -> dict[str, Any]:
    """All that SQLAlchemy can see of a schema, but for the order in which things are listed."""
    inspector = inspect(conn)
    found: dict[str, Any] = {}
    for table in sorted(set(inspector.get_table_names()) - {"alembic_version"}):
        found[table] = {
            "columns": [{key: str(value) for key, value in column.items()} for column in inspector.get_columns(table)],
            "key": inspector.get_pk_constraint(table),
            "references": sorted(map(str, inspector.get_foreign_keys(table))),
            "unique": sorted(map(str, inspector.get_unique_constraints(table))),
            "checks": sorted(map(str, inspector.get_check_constraints(table))),
            "indexes": sorted(map(str, conn.exec_driver_sql(INDEXES, (table,)))),
            "options": inspector.get_table_options(table),
            "numbers once": "AUTOINCREMENT" in str(conn.exec_driver_sql(TABLE, (table,)).scalar_one()),
        }
    return found


def test_a_new_database_equals_the_tables(tmp_path: Path) -> None:
    database = opened(tmp_path / "hotseat.db")
    memory = create_engine("sqlite://")
    with memory.begin() as wanted, database.connect_writer() as made:
        metadata.create_all(wanted)
        assert anatomy(made) == anatomy(wanted)
        made.rollback()
        context = MigrationContext.configure(made, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []
    memory.dispose()
    database.close()


def test_every_table_is_strict_and_every_constraint_has_a_name(tmp_path: Path) -> None:
    database = opened(tmp_path / "hotseat.db")
    sql = database.read_now(lambda conn: conn.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'table'").all())
    tables: dict[str, str] = dict(map(tuple, sql))
    strict = {row[1] for row in database.read_now(lambda conn: conn.exec_driver_sql("PRAGMA table_list").all()) if row[5]}
    assert strict == set(metadata.tables)
    for name in metadata.tables:
        for line in tables[name].splitlines():
            if re.search(r"CHECK|UNIQUE|FOREIGN KEY|PRIMARY KEY \(", line):
                assert re.match(r"\s*CONSTRAINT (pk|fk|uq|ck)_" + name, line), line
            assert "CASCADE" not in line
    database.close()


def test_revisions_are_numbered_without_a_gap_and_the_last_is_the_schema() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.scripts_folder()))
    revisions = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()][::-1]
    assert revisions == [f"{number:04d}" for number in range(1, SCHEMA + 1)]


def test_the_environment_is_not_run_by_hand(tmp_path: Path) -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.scripts_folder()))
    from alembic import command

    with pytest.raises(RuntimeError, match="no separate command"):
        command.upgrade(config, "head")


# --- databases of released schemas ----------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", range(1, SCHEMA + 1))
def test_the_database_of_each_schema_opens_for_ever(tmp_path: Path, schema: int) -> None:
    path = tmp_path / "hotseat.db"
    shutil.copyfile(DATA / f"store-{schema:04d}.db", path)
    check_rows(path, schema)
    assert len(list_backups(path)) == (schema < SCHEMA)


def test_what_is_compared_covers_every_table(tmp_path: Path) -> None:
    write(tmp_path / "hotseat.db")
    check_rows(tmp_path / "hotseat.db")
    reader = sqlite3.connect(tmp_path / "hotseat.db")
    empty = [name for name in metadata.tables if reader.execute(f"SELECT count(*) FROM {name}").fetchone() == (0,)]
    reader.close()
    assert empty == []


# --- what the next migration will meet ------------------------------------------------------------------------------

NEXT = SCHEMA + 1

HEADER = f'''
import os, signal
import sqlalchemy as sa
from alembic import op
revision = "{NEXT:04d}"
down_revision = "{SCHEMA:04d}"
branch_labels = None
depends_on = None

def downgrade():
    pass
'''

#: Re-creates a table that others refer to: with foreign keys on, SQLite would have taken the children along.
RECREATE = """
def upgrade():
    with op.batch_alter_table("models", recreate="always") as batch:
        batch.add_column(sa.Column("colour", sa.Text(), nullable=False, server_default="grey"))
    with op.batch_alter_table("launches", recreate="always", table_kwargs={"sqlite_autoincrement": True}) as batch:
        batch.alter_column("log_line", new_column_name="last_line")
    op.execute("CREATE TABLE colours (name TEXT NOT NULL, CONSTRAINT pk_colours PRIMARY KEY (name)) STRICT")
"""

HALF_DONE = """
def upgrade():
    op.execute("CREATE TABLE half (a TEXT) STRICT")
    op.execute("DELETE FROM events")
    op.execute("UPDATE models SET source = 'lost'")
    {then}
"""


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A copy of the migrations, to add one to."""
    return shutil.copytree(migrate.scripts_folder(), tmp_path / "migrations", ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A populated database of today's schema, old in the eyes of the next version."""
    path = tmp_path / "state" / "hotseat.db"
    write(path)
    return path


def upgrade(path: Path, scripts: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open ``path`` as a version would that has one more migration."""
    (scripts / "versions" / f"{NEXT:04d}_next.py").write_text(HEADER + body)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "SCHEMA", NEXT)
        patch.setattr(migrate, "scripts_folder", lambda: scripts)
        opened(path).close()


def counts(path: Path) -> dict[str, int]:
    reader = sqlite3.connect(path)
    names = [row[0] for row in reader.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")]
    found = {name: reader.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names}
    reader.close()
    return found


def unchanged(path: Path) -> None:
    """The database is as today's version left it, for today's version."""
    reader = sqlite3.connect(path)
    assert reader.execute("PRAGMA user_version").fetchone() == (SCHEMA,)
    assert reader.execute("SELECT count(*) FROM sqlite_master WHERE name = 'half'").fetchone() == (0,)
    reader.close()
    check_rows(path)


def test_a_table_that_others_refer_to_is_recreated_without_losing_a_row(old: Path, scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = counts(old)
    upgrade(old, scripts, RECREATE, monkeypatch)
    assert counts(old) == {**before, "colours": 0}
    reader = sqlite3.connect(old)
    assert reader.execute("PRAGMA user_version").fetchone() == (NEXT,)
    assert reader.execute("PRAGMA foreign_key_check").fetchall() == []
    assert {row[0] for row in reader.execute("SELECT colour FROM models")} == {"grey"}
    (launches,) = reader.execute("SELECT sql FROM sqlite_master WHERE name = 'launches'").fetchone()
    reader.close()
    assert "STRICT" in launches
    assert "ck_launches_process" in launches
    assert "AUTOINCREMENT" in launches


def test_a_backup_of_the_old_schema_is_made_first_and_opens(old: Path, scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upgrade(old, scripts, RECREATE, monkeypatch)
    (backup,) = list_backups(old)
    assert backup.name.startswith(f"hotseat-schema-{SCHEMA:04d}-")
    check_rows(backup)


def test_today_refuses_what_the_next_version_wrote(old: Path, scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upgrade(old, scripts, RECREATE, monkeypatch)
    with pytest.raises(HotseatError) as refused:
        opened(old)
    assert refused.value.code == "store_newer"


@pytest.mark.parametrize(
    ("then", "message"),
    [
        ("raise ValueError('boom')", "ValueError: boom"),
        ("op.execute('INSERT INTO nowhere VALUES (1)')", "no such table"),
        ("op.execute('DELETE FROM models')", "lost what they refer to"),
    ],
)
def test_a_migration_that_fails_changes_nothing_and_may_be_repeated(
    old: Path, scripts: Path, monkeypatch: pytest.MonkeyPatch, then: str, message: str
) -> None:
    with pytest.raises(HotseatError, match=message) as failed:
        upgrade(old, scripts, HALF_DONE.format(then=then), monkeypatch)
    assert failed.value.code == "store_migration"
    assert "nothing was changed" in failed.value.fix
    unchanged(old)
    upgrade(old, scripts, RECREATE, monkeypatch)
    assert counts(old)["colours"] == 0


def test_kill_9_in_the_middle_of_a_migration_changes_nothing(old: Path, scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (scripts / "versions" / f"{NEXT:04d}_next.py").write_text(HEADER + HALF_DONE.format(then="os.kill(os.getpid(), signal.SIGKILL)"))
    program = f"""
import sys
from pathlib import Path
from scheduler.store import engine, migrate
from tests.support.store_records import StillClock
engine.SCHEMA = {NEXT}
migrate.scripts_folder = lambda: Path(sys.argv[2])
engine.open_database(sys.argv[1], clock=StillClock())
"""
    command = [sys.executable, "-c", program, str(old), str(scripts)]
    assert subprocess.run(command, cwd=Path(__file__).parents[2], check=False).returncode == -signal.SIGKILL
    unchanged(old)
    upgrade(old, scripts, RECREATE, monkeypatch)
    assert counts(old)["colours"] == 0


def test_an_empty_database_whose_first_migration_was_interrupted_is_finished(
    tmp_path: Path, scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state" / "hotseat.db"
    first = next((scripts / "versions").glob("0001_*.py"))
    whole = first.read_text()
    first.write_text(whole.replace("        op.execute(statement)", "        op.execute(statement)\n        raise ValueError('power cut')"))
    monkeypatch.setattr(migrate, "scripts_folder", lambda: scripts)
    with pytest.raises(HotseatError, match="power cut"):
        opened(path)
    assert "meta" not in counts(path)
    first.write_text(whole)
    opened(path).close()
    assert counts(path)["meta"] == 2
    assert list_backups(path) == []
