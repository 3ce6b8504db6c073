"""`hotseat doctor`: each check on made-up machines, and the whole without and with a daemon."""

import json
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from scheduler.api.schemas import Degraded
from scheduler.cli import main as cli
from scheduler.cli.commands.doctor import render
from scheduler.cli.doctor import installation
from scheduler.cli.doctor.finding import warn
from scheduler.cli.doctor.installation import check_packages, check_python, check_sqlite
from scheduler.cli.doctor.machine import check_limits, check_memory, check_shm, check_sleep_memory, check_state_dir, filesystem_of
from scheduler.cli.render.facts import View
from scheduler.cli.render.text import PLAIN
from tests.support import worlds
from tests.support.fake_plane import FakePlane, PlaneServer

GIB = 1 << 30


@pytest.mark.parametrize(("version", "state"), [((3, 10, 9), "fail"), ((3, 11, 0), "ok"), ((3, 14, 2), "ok")])
def test_python(version: tuple[int, ...], state: str) -> None:
    assert check_python(version).state == state


@pytest.mark.parametrize(
    ("version", "state"), [("3.34.1", "fail"), ("3.40.1", "warn"), ("3.51.2", "warn"), ("3.51.3", "ok"), ("3.53.0", "ok")]
)
def test_sqlite(version: str, state: str) -> None:
    finding = check_sqlite(version)
    assert finding.state == state
    assert bool(finding.fix) is (state != "ok")


def test_the_real_sqlite_is_asked() -> None:
    import sqlite3

    assert check_sqlite().text.startswith(sqlite3.sqlite_version)
    finding = check_sqlite(needs={"STRICT tables": "CREATE TABLE t (x INTEGER) STRICT", "flying": "SELECT fly('now')"})
    assert (finding.state, finding.text) == ("fail", f"{sqlite3.sqlite_version} of this Python cannot do: flying")


def test_packages_are_ours_here() -> None:
    findings = check_packages()
    assert [finding.state for finding in findings if "ours" in finding.text] == ["ok", "ok"]


def test_a_package_of_the_same_name_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    stranger = tmp_path / "adapters"
    stranger.mkdir()
    (stranger / "__init__.py").touch()
    for name in [name for name in sys.modules if name.partition(".")[0] == "adapters"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    [finding] = [finding for finding in check_packages() if "adapters" in finding.text]
    assert finding.state == "fail"
    assert str(tmp_path) in finding.text
    assert "PYTHONSAFEPATH" in finding.fix


def test_without_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installation, "distribution", missing)
    assert check_packages()[0].state == "fail"


def mounts(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_state_dir_that_will_be_made(tmp_path: Path) -> None:
    findings = check_state_dir(tmp_path / "a" / "b")
    assert [finding.state for finding in findings] == ["ok"] * len(findings)
    assert "will be made" in findings[0].text
    assert not (tmp_path / "a").exists()


def test_state_dir_under_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert check_state_dir(tmp_path / "file")[0].state == "fail"


def test_state_dir_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.cli.doctor.machine.os.access", lambda path, mode: False)
    finding = check_state_dir(tmp_path)[0]
    assert (finding.state, "chown" in finding.fix) == ("fail", True)


def test_state_dir_on_a_network_file_system(tmp_path: Path) -> None:
    root = "22 1 8:1 / / rw - ext4 /dev/sda1 rw"
    here = f"23 22 0:40 / {tmp_path} rw shared:1 - nfs4 server:/x rw"
    assert check_state_dir(tmp_path, mounts(tmp_path, root, here))[1].state == "fail"
    assert check_state_dir(tmp_path, mounts(tmp_path, root))[1].text == "on ext4"


def test_the_nearest_mount_counts_and_of_two_on_one_point_the_later(tmp_path: Path) -> None:
    table = mounts(
        tmp_path,
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw",
        "2 1 0:3 / /var rw - nfs s:/v rw",
        "3 2 0:4 / /var/lib/my\\040state rw - xfs /dev/sdb rw",
        "4 1 0:5 / /srv rw - nfs s:/v rw",
        "5 1 0:6 / /srv rw - btrfs /dev/sdc rw",
        "nonsense",
    )
    assert filesystem_of(Path("/var/lib"), table) == "nfs"
    assert filesystem_of(Path("/var/lib/my state/x"), table) == "xfs"
    assert filesystem_of(Path("/varnish"), table) == "ext4"
    assert filesystem_of(Path("/srv/data"), table) == "btrfs"
    assert filesystem_of(Path("/x"), tmp_path / "none") is None


def test_state_dir_too_long_for_its_socket(tmp_path: Path) -> None:
    assert any(finding.state == "fail" and "107" in finding.text for finding in check_state_dir(tmp_path / ("x" * 100)))


@pytest.mark.parametrize(
    ("free", "total", "state"),
    [(50 << 20, GIB, "fail"), (GIB // 2, 4 * GIB, "warn"), (4 * GIB, 100 * GIB, "warn"), (50 * GIB, 100 * GIB, "ok")],
)
def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, total: int, state: str) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=free, total=total)
    monkeypatch.setattr("scheduler.cli.doctor.machine.shutil.disk_usage", lambda path: usage)
    [finding] = [finding for finding in check_state_dir(tmp_path) if finding.name == "disk"]
    assert finding.state == state


def meminfo(root: Path, **kib: int) -> str:
    (root / "meminfo").write_text("".join(f"{name}: {value} kB\n" for name, value in kib.items()))
    return str(root)


def limited(root: Path, limit: int, used: int) -> None:
    """A memory control group (version 2) of this process, mounted in ``root``."""
    (root / "self").mkdir()
    group = root / "cgroup/box"
    group.mkdir(parents=True)
    (root / "self/mountinfo").write_text(f"30 1 0:26 / {root}/cgroup rw - cgroup2 cgroup2 rw\n")
    (root / "self/cgroup").write_text("0::/box\n")
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text("inactive_file 0\nactive_file 0\n")


KIB = 1024


@pytest.mark.parametrize(("budget", "own", "state"), [(None, 0, "ok"), (3 * GIB, 0, "ok"), (5 * GIB, 0, "warn"), (5 * GIB, 2 * GIB, "ok")])
def test_memory_against_the_declared_budgets(tmp_path: Path, budget: int | None, own: int, state: str) -> None:
    proc = meminfo(tmp_path, MemTotal=8 * GIB // KIB, MemAvailable=4 * GIB // KIB)
    memory, swap = check_memory(budget, own, proc)
    assert (memory.name, memory.state) == ("memory", state)
    assert memory.text.startswith("4.0 GiB available of 8.0 GiB")
    assert (swap.state, swap.text) == ("ok", "none")


@pytest.mark.parametrize(
    ("said", "state", "text"),
    [
        (None, "warn", "2.0 GiB of host memory for weights of sleepers, half of what is available, less than one card of 3.0 GiB"),
        (3 * GIB, "ok", "3.0 GiB of host memory for weights of sleepers"),
        (1 * GIB, "warn", "1.0 GiB of host memory for weights of sleepers, less than one card of 3.0 GiB"),
        (9 * GIB, "warn", "9.0 GiB of host memory for weights of sleepers, but there are only 8.0 GiB in all"),
        (0, "ok", "host.sleep_memory is 0: nothing sleeps at level 1"),
    ],
)
def test_host_memory_to_sleep_in(tmp_path: Path, said: int | None, state: str, text: str) -> None:
    proc = meminfo(tmp_path, MemTotal=8 * GIB // KIB, MemAvailable=4 * GIB // KIB)
    (found,) = check_sleep_memory(said, 3 * GIB, proc)
    assert (found.name, found.state) == ("sleep", state)
    assert found.text.startswith(text)
    assert bool(found.fix) == (state == "warn")
    assert check_sleep_memory(said, 0, proc) == [], "nobody asks for it without a card"


def test_memory_without_the_number(tmp_path: Path) -> None:
    assert [finding.state for finding in check_memory(GIB, 0, str(tmp_path))] == ["warn"]


@pytest.mark.parametrize(("limit", "states"), [(6 * GIB, ["warn", "ok"]), (2 * GIB, ["warn", "ok", "warn"]), (99 * GIB, ["ok", "ok"])])
def test_the_limit_of_a_control_group_counts(tmp_path: Path, limit: int, states: list[str]) -> None:
    proc = meminfo(tmp_path, MemTotal=32 * GIB // KIB, MemAvailable=30 * GIB // KIB)
    limited(tmp_path, limit, used=GIB)
    found = check_memory(8 * GIB, 0, proc)
    assert [finding.state for finding in found] == states
    assert ("the limit of its control group; the machine has 32.0 GiB" in found[0].text) is (limit < 32 * GIB)


@pytest.mark.parametrize(("free", "state", "text"), [(8, "ok", "0 MiB of 8.0 GiB in use"), (5, "warn", "3.0 GiB of 8.0 GiB in use")])
def test_swap_in_use(tmp_path: Path, free: int, state: str, text: str) -> None:
    sizes = {"MemTotal": 8 * GIB, "MemAvailable": 4 * GIB, "SwapTotal": 8 * GIB, "SwapFree": free * GIB}
    _, swap = check_memory(None, 0, meminfo(tmp_path, **{name: value // KIB for name, value in sizes.items()}))
    assert swap.state == state
    assert swap.text.startswith(text)


@pytest.mark.parametrize(("total", "state"), [(64 << 20, "warn"), (8 * GIB, "ok")])
def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total: int, state: str) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(total=total)
    monkeypatch.setattr("scheduler.cli.doctor.machine.shutil.disk_usage", lambda path: usage)
    assert check_shm(tmp_path).state == state


def test_no_shared_memory(tmp_path: Path) -> None:
    assert (check_shm(tmp_path / "none").state, "tmpfs" in check_shm(tmp_path / "none").fix) == ("warn", True)


def test_limits() -> None:
    assert [finding.state for finding in check_limits({"nofile": -1, "nproc": -1, "memlock": -1, "as": -1})] == ["ok"]
    low = check_limits({"nofile": 1024, "nproc": 100, "memlock": 65536, "as": GIB})
    assert [finding.state for finding in low] == ["warn"] * 4
    assert "LimitNOFILE" in low[0].fix
    assert check_limits()


@pytest.fixture
def machine_with_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HOTSEAT_STATE_DIR", str(tmp_path))
    for name in ("HOTSEAT_URL", "HOTSEAT_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def server(machine_with_nothing: Path) -> Iterator[PlaneServer]:
    plane = FakePlane([worlds.awake_card()])
    plane.base = plane.base.model_copy(update={"devices": [worlds.cpu()]})
    with PlaneServer(machine_with_nothing, plane) as server:
        yield server


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    code = cli.main(["doctor", "--json", *words])
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is (code == 0)
    found: dict[str, list[dict[str, str]]] = {}
    for finding in report["findings"]:
        found.setdefault(finding["name"], []).append(finding)
    return code, found


def test_without_a_daemon(machine_with_nothing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = doctor(capsys)
    assert set(found) >= {
        "python",
        "sqlite",
        "packages",
        "engine",
        "config",
        "state dir",
        "disk",
        "memory",
        "swap",
        "shm",
        "limits",
        "daemon",
    }
    assert found["daemon"][0]["state"] == "warn"
    assert found["daemon"][0]["text"] == f"not running ({machine_with_nothing}/control.sock: no such file or directory)"
    assert found["daemon"][0]["fix"] == "hotseat serve"


def test_with_a_daemon(server: PlaneServer, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = doctor(capsys)
    assert "answers at" in found["daemon"][0]["text"]
    assert "declared for devices of kind cpu" in found["memory"][0]["text"]


def test_with_a_daemon_in_trouble(server: PlaneServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.plane.degraded = list(worlds.broken().degraded)
    server.plane.is_ready = False
    server.do(lambda plane: plane.models.update({"llama-70b": worlds.failing_card()}))
    code, found = doctor(capsys)
    assert code == 1
    texts = [finding["text"] for finding in found["daemon"] if finding["state"] == "fail"]
    assert texts[0].startswith("not ready")
    assert any("disk full" in text for text in texts)
    assert found["models"][0]["fix"] == "hotseat status llama-70b"


def test_a_model_whose_failure_keeps_the_daemon_from_serving_is_told_of_once(
    server: PlaneServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.plane.degraded = [Degraded(code="model_missing", subject="llama-70b", message="no such file", fix="correct `model`")]
    server.plane.is_ready = False
    server.do(lambda plane: plane.models.update({"llama-70b": worlds.failing_card()}))
    _, found = doctor(capsys)
    assert "degraded: model_missing (llama-70b): no such file" in [finding["text"] for finding in found["daemon"]]
    assert "models" not in found


def test_the_same_fault_of_several_devices_is_one_line_that_names_them(server: PlaneServer, capsys: pytest.CaptureFixture[str]) -> None:
    def item(device: str, message: str, code: str = "device_stale") -> Degraded:
        return Degraded(code=code, subject=device, message=message, fix="see `hotseat logs`")

    stale = [item(f"gpu{n}", f"{prefix}was not measured yet") for n, prefix in enumerate(("", "gpu1: ", "gpu2 "))]
    server.plane.degraded = [*stale, item("gpu3", "was not measured for 42 s"), item("gpu4", "was not measured yet", "device_lost")]
    _, found = doctor(capsys)
    assert [finding["text"] for finding in found["daemon"][1:]] == [
        "degraded: device_stale (gpu0, gpu1, gpu2): was not measured yet",
        "degraded: device_stale (gpu3): was not measured for 42 s",
        "degraded: device_lost (gpu4): was not measured yet",
    ]
    assert {finding["fix"] for finding in found["daemon"][1:]} == {"see `hotseat logs`"}


def test_the_text_form_names_the_fix_and_counts(machine_with_nothing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("warn  daemon"))
    assert lines[at + 1] == "                  fix: hotseat serve"
    assert lines[-1].endswith("warnings")


@pytest.mark.parametrize(("warnings", "words"), [(1, "0 failed, 1 warning"), (2, "0 failed, 2 warnings")])
def test_one_warning_is_one(warnings: int, words: str) -> None:
    assert render([warn("swap", "some", "none")] * warnings, View(now=0.0, columns=None, style=PLAIN))[-1] == words


def test_a_hanging_daemon_is_a_failure(
    machine_with_nothing: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    from scheduler.cli import client

    monkeypatch.setattr(client, "ANSWER_TIMEOUT_S", 0.1)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(machine_with_nothing / "control.sock"))
        sock.listen()
        code, found = doctor(capsys)
    assert code == 1
    assert "does not answer within" in found["daemon"][0]["text"]
