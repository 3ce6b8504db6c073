"""Names of discovered devices: a device keeps its id for ever, whatever its index becomes."""

from collections.abc import Iterable

from sqlalchemy import Connection, delete, select

from scheduler.domain.device import DeviceInfo
from scheduler.domain.ids import DeviceId
from scheduler.store.rows import upsert
from scheduler.store.tables import devices


def load_devices(conn: Connection, kind: str) -> dict[str, DeviceId]:
    """The ids of a family by uuid, of devices that are missing too."""
    query = select(devices.c.uuid, devices.c.id).where(devices.c.kind == kind).order_by(devices.c.id)
    return {row.uuid: DeviceId(row.id) for row in conn.execute(query)}


def save_devices(conn: Connection, found: Iterable[DeviceInfo], wall: float) -> None:
    """Keep the ids of what was found. An id that another uuid had (a card was exchanged) goes to the new one."""
    for info in found:
        conn.execute(delete(devices).where(devices.c.id == info.id, devices.c.uuid != info.uuid))
        upsert(conn, devices, {"uuid": info.uuid, "id": info.id, "kind": info.kind, "name": info.name, "seen_at": wall})
