"""Add the names of discovered devices, and the golden answer of each launch.

Frozen, like every revision.
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A table and a column."""
    op.execute(
        """
CREATE TABLE devices (
    uuid TEXT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    seen_at REAL NOT NULL,
    CONSTRAINT pk_devices PRIMARY KEY (uuid),
    CONSTRAINT uq_devices_id UNIQUE (id)
) STRICT
"""
    )
    op.execute("ALTER TABLE launches ADD COLUMN golden TEXT")


def downgrade() -> None:
    """The backup made before the upgrade is the way back."""
    raise RuntimeError("put the backup made before schema 0002 in the place of the database")
