"""One daemon per state directory, with real processes that stop, die and leave children."""

import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scheduler.domain.errors import Conflict, Permanent
from scheduler.store.lock import StateLock

HOLD = """
import os, sys
from pathlib import Path
from scheduler.store.lock import StateLock
lock = StateLock(Path(sys.argv[1]))
{then}
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(state_dir: Path, then: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(then=then), str(state_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def refused(state_dir: Path) -> Conflict:
    with pytest.raises(Conflict) as caught:
        StateLock(state_dir)
    assert caught.value.code == "already_running"
    return caught.value


def test_a_second_daemon_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with holder(tmp_path) as first:
        error = refused(tmp_path)
        assert f"process {first.pid} " in error.message
        assert str(tmp_path) in error.message
        assert f"kill {first.pid}" in error.fix
        first.send_signal(signal.SIGSTOP)
        assert f"process {first.pid} " in refused(tmp_path).message
        first.send_signal(signal.SIGCONT)


def test_kill_9_frees_it_at_once_and_what_is_left_in_the_file_is_no_obstacle(tmp_path: Path) -> None:
    with holder(tmp_path) as first:
        first.kill()
        first.wait()
        assert (tmp_path / "lock").read_text() == f"{first.pid}\n"
        with StateLock(tmp_path):
            assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
            assert f"process {os.getpid()} " in refused(tmp_path).message
    StateLock(tmp_path).release()


def test_releasing_twice_is_harmless_and_does_not_close_a_strangers_file(tmp_path: Path) -> None:
    lock = StateLock(tmp_path)
    lock.release()
    with (tmp_path / "other").open("w") as other:  # takes the number of the closed descriptor
        lock.release()
        other.write("still open")


def test_the_file_is_private_and_a_long_old_content_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("x" * 500)
    with StateLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    with StateLock(tmp_path / "new"):
        assert (tmp_path / "new" / "lock").stat().st_mode & 0o777 == 0o600


#: The child says when it runs, and then waits for the end of the test, not of its parent.
FORK = """
keep, (r, w) = os.dup(0), os.pipe()
def child():
    os.write(w, b"x")
    os.read(keep, 1)
"""
STARTS = {
    "fork": FORK + "pid = os.fork()\nif pid == 0:\n    os.close(1)\n    child()\n    os._exit(0)\nos.read(r, 1)",
    "multiprocessing": FORK
    + "import multiprocessing as m\np = m.get_context('fork').Process(target=child)\np.start()\npid = p.pid\nos.read(r, 1)",
    "exec": "import subprocess\np = subprocess.Popen(['cat'], stdout=subprocess.DEVNULL)\npid = p.pid",
    "exec, descriptors open": "import subprocess\np = subprocess.Popen(['cat'], stdout=subprocess.DEVNULL, close_fds=False)\npid = p.pid",
}


@pytest.mark.parametrize("then", STARTS.values(), ids=STARTS)
def test_a_child_that_outlives_the_daemon_does_not_keep_the_lock(tmp_path: Path, then: str) -> None:
    with holder(tmp_path, then + f"\nopen({str(tmp_path / 'child')!r}, 'w').write(str(pid))") as first:
        child = int((tmp_path / "child").read_text())
        first.kill()
        first.wait()
        assert Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] != "Z"  # it lives
        StateLock(tmp_path).release()


def test_a_holder_that_cannot_be_named_is_still_explained(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        assert re.match("another process already holds", refused(tmp_path).message)
        with subprocess.Popen(["true"]) as gone:
            pass
        os.pwrite(fd, f"{gone.pid}\n".encode(), 0)
        error = refused(tmp_path)
        assert f"left behind by {gone.pid}, which has ended" in error.message
        assert "fuser" in error.fix
    finally:
        os.close(fd)


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Permanent) as failed:
        StateLock(tmp_path / "file" / "state")
    assert failed.value.code == "store_io"
    (tmp_path / "state" / "lock").mkdir(parents=True)
    with pytest.raises(Permanent):
        StateLock(tmp_path / "state")
