"""Which file systems are refused for the state directory."""

from pathlib import Path

import pytest

from scheduler.domain.errors import Permanent
from scheduler.store import filesystem
from scheduler.store.filesystem import filesystem_of, refuse_network

MOUNTS = """\
21 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 21 0:40 / /srv rw,relatime - nfs4 server:/export rw,vers=4.2
31 30 0:41 / /srv/local rw - xfs /dev/vdb rw
32 21 0:42 / /home/with\\040space rw - fuse.sshfs host:/ rw
33 21 0:43 / /data rw - ext4 /dev/vdc rw
34 33 0:44 / /data rw - cifs //server/share rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/var/lib/hotseat", "ext4"),
        ("/srv", "nfs4"),
        ("/srv/state", "nfs4"),
        ("/srvx", "ext4"),
        ("/srv/local/state", "xfs"),
        ("/home/with space/state", "fuse.sshfs"),
        ("/data/state", "cifs"),
    ],
)
def test_the_deepest_and_last_mount_counts(path: str, kind: str) -> None:
    assert filesystem_of(Path(path), MOUNTS)[0] == kind


def test_nothing_is_known_without_a_mount_table() -> None:
    assert filesystem_of(Path("/x"), "") == ("", "")


def test_a_network_file_system_is_refused_by_name_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"21 1 254:1 / / rw - ext4 /dev/vda1 rw\n30 21 0:40 / {tmp_path} rw - nfs4 server:/export rw\n")
    monkeypatch.setattr(filesystem, "MOUNTS", table)
    with pytest.raises(Permanent, match=r"nfs4 .*memory shared") as refused:
        refuse_network(tmp_path / "not-made-yet")
    assert refused.value.code == "store_network_fs"
    assert "local disk" in refused.value.fix


def test_the_mount_table_of_this_machine_is_understood(tmp_path: Path) -> None:
    kind, point = filesystem_of(tmp_path.resolve(), filesystem.MOUNTS.read_text())
    assert kind
    assert tmp_path.is_relative_to(point)
    refuse_network(tmp_path)


def test_a_machine_without_a_mount_table_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "MOUNTS", tmp_path / "absent")
    refuse_network(tmp_path)
