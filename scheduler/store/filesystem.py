"""Which file system a path is on: WAL needs shared memory between processes, which network file systems do not give.

The mount table rather than statfs(2): only it tells one FUSE file system (sshfs) from another.
"""

import re
from pathlib import Path

from scheduler.domain.errors import Permanent

MOUNTS = Path("/proc/self/mountinfo")

#: Types whose clients do not share memory, or whose locks are not dependable.
NETWORK = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "fuse.ceph",
        "fuse.cephfs",
        "fuse.davfs",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.juicefs",
        "fuse.mfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.seaweedfs",
        "fuse.sshfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "smb2",
        "smb3",
        "smbfs",
    }
)

_ESCAPE = re.compile(r"\\([0-7]{3})")


def filesystem_of(path: Path, mounts: str) -> tuple[str, str]:
    """(type, mount point) of an absolute resolved ``path`` in the text of a mountinfo file; ("", "") when it is not listed.

    The deepest mount point wins, and of equal ones the last: it is mounted over the others.
    """
    found = ("", "")
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split()
        if not separator or len(fields) < 5 or not after.split():
            continue
        point = _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), fields[4])
        if path.is_relative_to(point) and len(point) >= len(found[1]):
            found = (after.split()[0], point)
    return found


def refuse_network(folder: Path) -> None:
    """Raise Permanent (``store_network_fs``) when ``folder`` is on a network file system.

    Where there is no mount table nothing is known and nothing is refused; SQLite's own check of WAL still follows.
    """
    try:
        mounts = MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return
    kind, point = filesystem_of(folder.resolve(), mounts)
    if kind in NETWORK:
        raise Permanent(
            f"the state directory {folder} is on {kind} (mounted at {point}); the database needs memory shared between processes",
            code="store_network_fs",
            fix="set state_dir to a folder on a local disk",
        )
