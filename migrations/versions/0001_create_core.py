"""Create the core: registry, launches, instances, journal, usage, events, actions.

Frozen: the SQL is spelt out, so that later changes of scheduler/store/tables.py cannot change what this revision makes.
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

STATEMENTS = (
    """
CREATE TABLE actions (
    id TEXT NOT NULL,
    verb TEXT NOT NULL,
    model TEXT,
    state TEXT NOT NULL,
    principal TEXT NOT NULL,
    created_at REAL NOT NULL,
    ended_at REAL,
    result TEXT,
    CONSTRAINT pk_actions PRIMARY KEY (id),
    CONSTRAINT ck_actions_result_json CHECK (result IS NULL OR json_valid(result))
) STRICT
""",
    "CREATE INDEX ix_actions_created_at ON actions (created_at)",
    """
CREATE TABLE events (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    message TEXT NOT NULL,
    data TEXT NOT NULL,
    CONSTRAINT ck_events_data_json CHECK (json_valid(data))
) STRICT
""",
    """
CREATE TABLE meta (
    "key" TEXT NOT NULL,
    value TEXT NOT NULL,
    CONSTRAINT pk_meta PRIMARY KEY ("key")
) STRICT
""",
    """
CREATE TABLE models (
    name TEXT NOT NULL,
    spec TEXT NOT NULL,
    source TEXT NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    removed_at REAL,
    CONSTRAINT pk_models PRIMARY KEY (name),
    CONSTRAINT ck_models_spec_json CHECK (json_valid(spec))
) STRICT
""",
    """
CREATE TABLE moves (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    devices TEXT NOT NULL,
    cause TEXT NOT NULL,
    created_s REAL NOT NULL,
    beneficiary TEXT,
    force INTEGER NOT NULL,
    action TEXT,
    reason_code TEXT NOT NULL,
    reason_text TEXT NOT NULL,
    reason_fix TEXT NOT NULL,
    reason_log_line TEXT NOT NULL,
    state TEXT NOT NULL,
    ended_at REAL,
    CONSTRAINT ck_moves_force CHECK (force IN (0, 1)),
    CONSTRAINT ck_moves_devices_json CHECK (json_valid(devices))
) STRICT
""",
    "CREATE INDEX ix_moves_open ON moves (id) WHERE state = 'open'",
    """
CREATE TABLE transitions (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    instance TEXT NOT NULL,
    model TEXT NOT NULL,
    source TEXT NOT NULL,
    target TEXT NOT NULL,
    event TEXT NOT NULL,
    cause TEXT NOT NULL,
    reason_code TEXT NOT NULL,
    reason_text TEXT NOT NULL,
    reason_fix TEXT NOT NULL,
    reason_log_line TEXT NOT NULL
) STRICT
""",
    "CREATE INDEX ix_transitions_instance_seq ON transitions (instance, seq)",
    "CREATE INDEX ix_transitions_model_seq ON transitions (model, seq)",
    """
CREATE TABLE usage_minutes (
    model TEXT NOT NULL,
    minute INTEGER NOT NULL,
    principal TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    requests INTEGER NOT NULL,
    errors INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    holds INTEGER NOT NULL,
    cold_hits INTEGER NOT NULL,
    hold_seconds REAL NOT NULL,
    last_at REAL NOT NULL,
    CONSTRAINT pk_usage_minutes PRIMARY KEY (model, minute, principal, endpoint)
) STRICT
""",
    "CREATE INDEX ix_usage_minutes_minute ON usage_minutes (minute)",
    """
CREATE TABLE footprints (
    model TEXT NOT NULL,
    engine TEXT NOT NULL,
    engine_version TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    device_kind TEXT NOT NULL,
    numbers TEXT,
    source TEXT NOT NULL,
    runs TEXT NOT NULL,
    updated_at REAL NOT NULL,
    CONSTRAINT pk_footprints PRIMARY KEY (model, engine, engine_version, fingerprint, device_kind),
    CONSTRAINT ck_footprints_numbers_json CHECK (numbers IS NULL OR json_valid(numbers)),
    CONSTRAINT ck_footprints_runs_json CHECK (json_valid(runs)),
    CONSTRAINT fk_footprints_model_models FOREIGN KEY(model) REFERENCES models (name) ON DELETE RESTRICT ON UPDATE RESTRICT
) STRICT
""",
    """
CREATE TABLE launches (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    instance TEXT NOT NULL,
    model TEXT NOT NULL,
    engine TEXT NOT NULL,
    argv TEXT NOT NULL,
    env TEXT NOT NULL,
    env_hash TEXT NOT NULL,
    cwd TEXT NOT NULL,
    devices TEXT NOT NULL,
    port INTEGER NOT NULL,
    kv_bytes INTEGER,
    footprint TEXT NOT NULL,
    token TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    served_model TEXT NOT NULL,
    ready_path TEXT NOT NULL,
    sleep_paths TEXT NOT NULL,
    wake_paths TEXT NOT NULL,
    log_path TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    created_at REAL NOT NULL,
    pid INTEGER,
    start_ticks INTEGER,
    version TEXT NOT NULL,
    ended_at REAL,
    result TEXT,
    exit_code INTEGER,
    exit_signal INTEGER,
    end_reason TEXT,
    log_line TEXT,
    duration_s REAL,
    CONSTRAINT uq_launches_token UNIQUE (token),
    CONSTRAINT ck_launches_process CHECK ((pid IS NULL) = (start_ticks IS NULL)),
    CONSTRAINT ck_launches_ended CHECK ((ended_at IS NULL) = (result IS NULL)),
    CONSTRAINT ck_launches_argv_json CHECK (json_valid(argv)),
    CONSTRAINT ck_launches_env_json CHECK (json_valid(env)),
    CONSTRAINT ck_launches_devices_json CHECK (json_valid(devices)),
    CONSTRAINT ck_launches_footprint_json CHECK (json_valid(footprint)),
    CONSTRAINT ck_launches_sleep_paths_json CHECK (json_valid(sleep_paths)),
    CONSTRAINT ck_launches_wake_paths_json CHECK (json_valid(wake_paths)),
    CONSTRAINT fk_launches_model_models FOREIGN KEY(model) REFERENCES models (name) ON DELETE RESTRICT ON UPDATE RESTRICT
) STRICT
""",
    "CREATE INDEX ix_launches_instance_id ON launches (instance, id)",
    "CREATE INDEX ix_launches_open ON launches (id) WHERE ended_at IS NULL",
    """
CREATE TABLE move_steps (
    move INTEGER NOT NULL,
    position INTEGER NOT NULL,
    instance TEXT NOT NULL,
    goal_phase TEXT NOT NULL,
    goal_level INTEGER,
    kind TEXT NOT NULL,
    devices TEXT NOT NULL,
    CONSTRAINT pk_move_steps PRIMARY KEY (move, position),
    CONSTRAINT ck_move_steps_devices_json CHECK (json_valid(devices)),
    CONSTRAINT fk_move_steps_move_moves FOREIGN KEY(move) REFERENCES moves (id) ON DELETE RESTRICT ON UPDATE RESTRICT
) STRICT
""",
    """
CREATE TABLE instances (
    id TEXT NOT NULL,
    model TEXT NOT NULL,
    ordinal INTEGER NOT NULL,
    variant TEXT DEFAULT '' NOT NULL,
    phase TEXT NOT NULL,
    level INTEGER,
    goal_phase TEXT NOT NULL,
    goal_level INTEGER,
    devices TEXT NOT NULL,
    launch_id INTEGER,
    claim TEXT NOT NULL,
    since_s REAL NOT NULL,
    deadline_s REAL,
    launch_deadline_s REAL,
    retry_at_s REAL,
    "before" TEXT,
    failures TEXT NOT NULL,
    cause TEXT NOT NULL,
    reason_code TEXT NOT NULL,
    reason_text TEXT NOT NULL,
    reason_fix TEXT NOT NULL,
    reason_log_line TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    CONSTRAINT pk_instances PRIMARY KEY (id),
    CONSTRAINT ck_instances_devices_json CHECK (json_valid(devices)),
    CONSTRAINT ck_instances_claim_json CHECK (json_valid(claim)),
    CONSTRAINT ck_instances_failures_json CHECK (json_valid(failures)),
    CONSTRAINT fk_instances_model_models FOREIGN KEY(model) REFERENCES models (name) ON DELETE RESTRICT ON UPDATE RESTRICT,
    CONSTRAINT fk_instances_launch_id_launches FOREIGN KEY(launch_id) REFERENCES launches (id) ON DELETE RESTRICT ON UPDATE RESTRICT
) STRICT
""",
)


def upgrade() -> None:
    """Create all tables and indexes."""
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    """There is nothing before the first revision; a backup is the way back."""
    raise RuntimeError("schema 0001 has no predecessor")
