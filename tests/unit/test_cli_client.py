"""Finding and asking the daemon: doors that are closed, what counts as news for a watch."""

from pathlib import Path

import pytest

from scheduler.cli import client
from scheduler.cli.client import Daemon, Target, host_name
from scheduler.cli.failure import NOT_PERMITTED, CliError, DaemonUnreachable
from scheduler.cli.watch import essence
from tests.support import worlds
from tests.support.fake_plane import FakePlane, PlaneServer


@pytest.fixture
def closed_door(monkeypatch: pytest.MonkeyPatch) -> Target:
    """A control socket that this user may not open (tests often run as root, whom nothing stops)."""
    real = client._Connection.connect

    def connect(self: client._Connection) -> None:
        if self._target.path == "/closed/control.sock":
            raise PermissionError(13, "Permission denied")
        real(self)

    monkeypatch.setattr(client._Connection, "connect", connect)
    return Target("/closed/control.sock", path="/closed/control.sock")


def test_reading_goes_on_to_the_next_door(tmp_path: Path, closed_door: Target) -> None:
    with PlaneServer(tmp_path, FakePlane([worlds.awake_card()])) as server:
        tcp = Target(server.url, host="127.0.0.1", port=server.port)
        daemon = Daemon([closed_door, tcp])
        assert daemon.get("/status")["version"] == "0.1.0"
        assert daemon.answered == tcp


def test_a_change_stops_at_a_closed_door_and_says_whom_it_is_open_to(tmp_path: Path, closed_door: Target) -> None:
    with PlaneServer(tmp_path, FakePlane([worlds.awake_card()])) as server:
        daemon = Daemon([closed_door, Target(server.url, host="127.0.0.1", port=server.port)])
        with pytest.raises(CliError) as caught:
            daemon.post("/models/gemma-8k/wake", {})
        assert server.plane.acts == []
    assert caught.value.exit_code == NOT_PERMITTED
    assert "join the group hotseat" in caught.value.fix


def test_every_door_that_was_tried_is_named(tmp_path: Path, closed_door: Target) -> None:
    stale = tmp_path / "control.sock"
    with PlaneServer(tmp_path, FakePlane()):
        pass
    assert stale.exists()  # left behind, as after a kill
    with pytest.raises(DaemonUnreachable) as caught:
        Daemon([closed_door, Target(str(stale), path=str(stale))]).get("/status")
    assert caught.value.detail == ("tried /closed/control.sock: permission denied", f"tried {stale}: connection refused")


def test_the_machine_is_called_by_its_own_name_unless_it_is_another_one() -> None:
    import os

    assert host_name(Target("x", path="/x")) == host_name(Target("x", host="127.0.0.1")) == os.uname().nodename
    assert host_name(Target("x", host="srv7.example", port=1)) == "srv7.example"


def test_numbers_that_move_by_themselves_are_no_news() -> None:
    before = worlds.healthy().model_dump(mode="json")
    drift = worlds.healthy().model_copy(
        update={"uptime_s": 1.0, "devices": [worlds.cpu(used_bytes=1, instances=["gemma-8k#0", "coder#0"])]}
    )
    assert essence(drift.model_dump(mode="json")) == essence(before)
    news = worlds.healthy().model_copy(update={"models": worlds.healthy().models[:2]})
    assert essence(news.model_dump(mode="json")) != essence(before)
