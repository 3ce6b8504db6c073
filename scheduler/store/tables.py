"""The tables, as the newest migration leaves them. docs/reference/database.md explains them to people.

Rules that keep every old file openable: STRICT tables, every constraint has a name, references RESTRICT, words whose
list may grow (phases, reason codes, results) carry no CHECK, and what has no column of its own is JSON.
Columns named ``*_s`` are monotonic seconds of the boot in ``boot_id``; ``at`` and ``*_at`` are wall clock, POSIX seconds.
"""

from sqlalchemy import REAL, CheckConstraint, Column, ForeignKey, Index, Integer, MetaData, Table, Text, UniqueConstraint, text
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

#: Number of the schema these tables are: the newest revision under migrations/versions, kept in ``user_version`` too.
SCHEMA = 2
#: "HSET": tells our files from anybody else's SQLite file.
APPLICATION_ID = 0x48534554

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class Words(TypeDecorator[str]):
    """TEXT. Bytes of a log or a path that were no UTF-8 (lone surrogates in Python) are stored as ``\\udcXX``.

    SQLite refuses such strings, and a garbled log line must not be what keeps a stop from being journaled.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """The value as SQLite can hold it."""
        return None if value is None else value.encode("utf-8", "backslashreplace").decode()


def _key(name: str) -> Column[str]:
    return Column(name, Words, primary_key=True, nullable=False)


def _words(name: str, *constraints: ForeignKey) -> Column[str]:
    return Column(name, Words, *constraints, nullable=False)


def _maybe_words(name: str) -> Column[str]:
    return Column(name, Words)


def _int(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False)


def _maybe_int(name: str) -> Column[int]:
    return Column(name, Integer)


def _real(name: str) -> Column[float]:
    return Column(name, REAL, nullable=False)


def _maybe_real(name: str) -> Column[float]:
    return Column(name, REAL)


def _number(name: str) -> Column[int]:
    """A number that is never given twice, not even after its row was pruned (see sqlite_autoincrement)."""
    return Column(name, Integer, primary_key=True, nullable=False)


def _reason() -> tuple[Column[str], ...]:
    return (_words("reason_code"), _words("reason_text"), _words("reason_fix"), _words("reason_log_line"))


def _json(*names: str) -> tuple[CheckConstraint, ...]:
    return tuple(CheckConstraint(f"json_valid({name})", name=f"{name}_json") for name in names)


def _maybe_json(name: str) -> CheckConstraint:
    # json_valid(NULL) is 0 in older SQLite and NULL in newer ones
    return CheckConstraint(f"{name} IS NULL OR json_valid({name})", name=f"{name}_json")


def _model() -> ForeignKey:
    return ForeignKey("models.name", ondelete="RESTRICT", onupdate="RESTRICT")


meta = Table("meta", metadata, _key("key"), _words("value"), sqlite_strict=True)

models = Table(
    "models",
    metadata,
    _key("name"),
    _words("spec"),
    _words("source"),
    _real("created_at"),
    _real("updated_at"),
    _maybe_real("removed_at"),
    *_json("spec"),
    sqlite_strict=True,
)

devices = Table(
    "devices",
    metadata,
    _key("uuid"),
    _words("id"),
    _words("kind"),
    _words("name"),
    _real("seen_at"),
    UniqueConstraint("id"),
    sqlite_strict=True,
)

footprints = Table(
    "footprints",
    metadata,
    Column("model", Words, _model(), primary_key=True, nullable=False),
    _key("engine"),
    _key("engine_version"),
    _key("fingerprint"),
    _key("device_kind"),
    _maybe_words("numbers"),  # a Footprint, when one was computed from the runs
    _words("source"),
    _words("runs"),  # a Learned: the last runs as they were measured
    _real("updated_at"),
    _maybe_json("numbers"),
    *_json("runs"),
    sqlite_strict=True,
)

launches = Table(
    "launches",
    metadata,
    _number("id"),
    _words("instance"),
    _words("model", _model()),
    _words("engine"),
    _words("argv"),
    _words("env"),
    _words("env_hash"),
    _words("cwd"),
    _words("devices"),
    _int("port"),
    _maybe_int("kv_bytes"),
    _words("footprint"),
    _words("token"),
    _words("fingerprint"),
    _words("served_model"),
    _words("ready_path"),
    _words("sleep_paths"),
    _words("wake_paths"),
    _words("log_path"),
    _words("boot_id"),
    _real("created_at"),
    _maybe_int("pid"),
    _maybe_int("start_ticks"),
    _words("version"),
    _maybe_real("ended_at"),
    _maybe_words("result"),
    _maybe_int("exit_code"),
    _maybe_int("exit_signal"),
    _maybe_words("end_reason"),
    _maybe_words("log_line"),
    _maybe_real("duration_s"),
    _maybe_words("golden"),  # what it answered after its start, to be compared with after each wake
    UniqueConstraint("token"),
    CheckConstraint("(pid IS NULL) = (start_ticks IS NULL)", name="process"),
    CheckConstraint("(ended_at IS NULL) = (result IS NULL)", name="ended"),
    *_json("argv", "env", "devices", "footprint", "sleep_paths", "wake_paths"),
    Index(None, "instance", "id"),
    Index("ix_launches_open", "id", sqlite_where=text("ended_at IS NULL")),
    sqlite_strict=True,
    sqlite_autoincrement=True,
)

instances = Table(
    "instances",
    metadata,
    _key("id"),
    _words("model", _model()),
    _int("ordinal"),
    Column("variant", Words, nullable=False, server_default=text("''")),
    _words("phase"),
    _maybe_int("level"),
    _words("goal_phase"),
    _maybe_int("goal_level"),
    _words("devices"),
    Column("launch_id", Integer, ForeignKey("launches.id", ondelete="RESTRICT", onupdate="RESTRICT")),
    _words("claim"),
    _real("since_s"),
    _maybe_real("deadline_s"),
    _maybe_real("launch_deadline_s"),
    _maybe_real("retry_at_s"),
    _maybe_words("before"),
    _words("failures"),
    _words("cause"),
    *_reason(),
    _words("boot_id"),
    *_json("devices", "claim", "failures"),
    sqlite_strict=True,
)

transitions = Table(
    "transitions",
    metadata,
    _number("seq"),
    _real("at"),
    _words("instance"),
    _words("model"),  # no reference: the story outlives the registry
    _words("source"),
    _words("target"),
    _words("event"),
    _words("cause"),
    *_reason(),
    Index(None, "instance", "seq"),
    Index(None, "model", "seq"),
    sqlite_strict=True,
    sqlite_autoincrement=True,
)

moves = Table(
    "moves",
    metadata,
    _number("id"),
    _words("devices"),
    _words("cause"),
    _real("created_s"),
    _maybe_words("beneficiary"),
    _int("force"),
    _maybe_words("action"),
    *_reason(),
    _words("state"),
    _maybe_real("ended_at"),
    CheckConstraint("force IN (0, 1)", name="force"),
    *_json("devices"),
    Index("ix_moves_open", "id", sqlite_where=text("state = 'open'")),
    sqlite_strict=True,
    sqlite_autoincrement=True,
)

move_steps = Table(
    "move_steps",
    metadata,
    Column("move", Integer, ForeignKey("moves.id", ondelete="RESTRICT", onupdate="RESTRICT"), primary_key=True, nullable=False),
    Column("position", Integer, primary_key=True, nullable=False),
    _words("instance"),
    _words("goal_phase"),
    _maybe_int("goal_level"),
    _words("kind"),
    _words("devices"),
    *_json("devices"),
    sqlite_strict=True,
)

usage_minutes = Table(
    "usage_minutes",
    metadata,
    _key("model"),  # no reference: what was used stays known after a model was removed
    Column("minute", Integer, primary_key=True, nullable=False),  # POSIX seconds // 60
    _key("principal"),
    _key("endpoint"),
    _int("requests"),
    _int("errors"),
    _int("prompt_tokens"),
    _int("cached_tokens"),
    _int("completion_tokens"),
    _int("holds"),
    _int("cold_hits"),
    _real("hold_seconds"),
    _real("last_at"),
    Index(None, "minute"),
    sqlite_strict=True,
)

events = Table(
    "events",
    metadata,
    _number("seq"),
    _real("at"),
    _words("kind"),
    _words("subject"),
    _words("message"),
    _words("data"),
    *_json("data"),
    sqlite_strict=True,
    sqlite_autoincrement=True,
)

actions = Table(
    "actions",
    metadata,
    _key("id"),
    _words("verb"),
    _maybe_words("model"),
    _words("state"),
    _words("principal"),
    _real("created_at"),
    _maybe_real("ended_at"),
    _maybe_words("result"),
    _maybe_json("result"),
    Index(None, "created_at"),
    sqlite_strict=True,
)
