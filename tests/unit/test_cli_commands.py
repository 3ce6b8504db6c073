"""The commands against the real application on a real control socket, with a control plane in memory behind it."""

import argparse
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scheduler.api.schemas import ActionError, Device, DeviceDetail, Progress, StoryEntry, Why
from scheduler.cli import client
from scheduler.cli import main as cli
from scheduler.cli.answers import ANYTHING, Shape
from scheduler.cli.client import Daemon
from scheduler.cli.commands import actions
from scheduler.cli.context import Context
from scheduler.cli.failure import DaemonUnreachable
from scheduler.domain.errors import Temporary
from tests.support import world_devices, worlds
from tests.support.fake_plane import T0, FakePlane, PlaneServer

SLASHED = "Qwen/Qwen3-8B:Q4"


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


Run = Callable[..., Ran]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlaneServer]:
    cards = [worlds.awake_card(), worlds.failing_card(), worlds.detail(worlds.model(SLASHED, engine="command", aliases=["default"]))]
    plane = FakePlane(cards, logs=tmp_path)
    plane.base = plane.base.model_copy(update={"devices": [worlds.cpu(instances=["gemma-8k#0"])]})
    monkeypatch.setenv("HOTSEAT_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("HOTSEAT_URL", raising=False)
    with PlaneServer(tmp_path, plane) as server:
        yield server


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> Ran:
        code = cli.main(list(words))
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run


def test_status_draws_the_table(server: PlaneServer, run: Run) -> None:
    ran = run("status")
    assert (ran.code, ran.err) == (0, "")
    first, *rest = ran.out.splitlines()
    assert first.startswith(f"{os.uname().nodename}  0.1.0  up 3d  3 models: 1 awake 1 stopped 1 failed  held 0")
    assert any(line.startswith("gemma-8k ") for line in rest)
    assert f"1 stopped: {SLASHED}" in rest
    assert "\x1b" not in ran.out
    assert run("ps").out.splitlines()[1:] == rest


def test_status_json_is_what_the_api_says(server: PlaneServer, run: Run) -> None:
    body = json.loads(run("status", "--json").out)
    assert [model["name"] for model in body["models"]] == ["gemma-8k", "llama-70b", SLASHED]
    assert body["plan"] == {"version": 0, "next": []}


def test_status_of_a_model_is_its_card(server: PlaneServer, run: Run) -> None:
    ran = run("status", "llama-70b")
    assert "why         model_missing: /srv/models/llama-70b.gguf does not exist" in ran.out
    assert "log         llama_model_load" in ran.out
    assert json.loads(run("status", "llama", "--json").out)["name"] == "llama-70b"
    assert run("status", SLASHED).out.startswith(f"{SLASHED}  stopped")


def test_models_ls_and_show(server: PlaneServer, run: Run) -> None:
    lines = run("models", "ls").out.splitlines()
    assert lines[0].split() == ["MODEL", "ENGINE", "STATE", "DEVICE", "MEM", "REQ", "USED", "SOURCE"]
    assert len(lines) == 4
    assert lines[1].endswith("/etc/hotseat/hotseat.yaml:41")
    assert [item["name"] for item in json.loads(run("list", "--json").out)["items"]] == ["gemma-8k", "llama-70b", SLASHED]
    assert "description small and quick" in run("models", "show", "gemma-8k").out
    assert json.loads(run("model", "show", "gemma-8k", "--json").out)["memory"]["source"] == "measured"


def test_devices_and_one_of_them(server: PlaneServer, run: Run) -> None:
    machine = world_devices.machine()
    server.do(lambda plane: setattr(plane, "base", plane.base.model_copy(update={"devices": machine.devices})))
    server.do(lambda plane: plane.details.update({"gpu0": world_devices.busy_card()}))
    ran = run("devices")
    assert (ran.code, ran.err) == (0, "")
    assert [line.split()[0] for line in ran.out.splitlines() if line[0] not in "! "] == ["ID", *(device.id for device in machine.devices)]
    assert run("devices", "ls").out == run("device").out == ran.out
    listed = json.loads(run("devices", "--json").out)["items"]
    assert [item["id"] for item in listed] == [device.id for device in machine.devices]
    assert set(listed[0]) == set(Device.model_fields)
    shown = json.loads(run("devices", "show", "gpu0", "--json").out)
    assert set(shown) == set(DeviceDetail.model_fields)
    assert "links       same NVLink island as gpu1, gpu2, gpu3" in run("devices", "show", "gpu0").out.splitlines()


def test_a_device_that_is_not_there(server: PlaneServer, run: Run) -> None:
    ran = run("devices", "show", "gpu/9")
    assert (ran.code, ran.out) == (4, "")
    assert ran.err == "hotseat: there is no device 'gpu/9'\nfix: hotseat devices lists what there is\n"
    assert run("devices", "show", "g" * 64).code == 2
    assert run("devices", "show").code == 2


def test_a_listing_longer_than_a_page_is_whole(server: PlaneServer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAGE_SIZE", 2)
    assert len(run("models", "ls").out.splitlines()) == 1 + 3


def test_wake_prints_effect_and_undo(server: PlaneServer, run: Run) -> None:
    ran = run("wake", SLASHED)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"started {SLASHED} on cpu0: 17.1 GiB in 2.9 s; undo: hotseat stop {SLASHED}\n"
    assert run("start", "default").out == f"{SLASHED} is already awake; nothing was done\n"
    assert [(verb, name) for verb, name, *_ in server.plane.acts] == [("wake", SLASHED)] * 2
    assert server.plane.acts[0][3].startswith("uid:")


def test_sleep_and_stop_send_their_options(server: PlaneServer, run: Run) -> None:
    run("wake", SLASHED)
    assert (
        run("sleep", SLASHED, "--level", "2").out == f"slept {SLASHED} at level 2: 17.1 GiB freed in 2.9 s; undo: hotseat wake {SLASHED}\n"
    )
    assert run("wake", SLASHED).out == f"woke {SLASHED} on cpu0: 17.1 GiB in 2.9 s; undo: hotseat sleep {SLASHED}\n"
    assert run("stop", SLASHED, "--now").out == f"stopped {SLASHED}: 17.1 GiB freed in 2.9 s; undo: hotseat wake {SLASHED}\n"
    options = [options for _, _, options, _ in server.plane.acts]
    assert (options[1].level, options[3].now) == (2, True)


def test_restart_and_what_else_was_touched(server: PlaneServer, run: Run) -> None:
    server.plane.hold = True
    action = _in_background(lambda: run("restart", "gemma-8k"))
    server.until(lambda plane: plane.waits == 1)
    also = [{"model": "coder", "action": "put to sleep"}]
    server.do(lambda plane: plane.finish("a1", interrupted=2, changed=True, also=_effects(also)))
    assert action().out.splitlines() == [
        "restarted gemma-8k on cpu0 in 2.9 s, 2 requests cut short; nothing to undo",
        "  also: coder put to sleep",
    ]


def _effects(items: list[dict[str, str]]) -> list[object]:
    from scheduler.api.schemas import SideEffect

    return [SideEffect.model_validate(item) for item in items]


def _in_background(work: Callable[[], Ran]) -> Callable[[], Ran]:
    results: list[Ran] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()

    def result() -> Ran:
        thread.join(20)
        assert results, "the command did not end"
        return results[0]

    return result


def test_no_wait_prints_only_the_id(server: PlaneServer, run: Run) -> None:
    server.plane.hold = True
    ran = run("wake", SLASHED, "--no-wait")
    assert (ran.code, ran.out, ran.err) == (0, "a1\n", "")
    server.do(lambda plane: plane.finish("a1"))


def test_json_of_an_action(server: PlaneServer, run: Run) -> None:
    body = json.loads(run("wake", SLASHED, "--json").out)
    assert (body["id"], body["state"], body["to_phase"]) == ("a1", "done", "awake")


def test_a_long_action_shows_progress_on_stderr(server: PlaneServer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "QUIET_S", 0.05)
    monkeypatch.setattr(actions, "LOOK_S", 0.02)
    server.plane.hold = True
    ran = _in_background(lambda: run("wake", SLASHED))
    server.until(lambda plane: plane.waits == 1)
    server.do(lambda plane: plane.progress("a1", Progress(phase="launching", elapsed_s=12.0, eta_s=28.0, text="loading weights")))
    looks: list[int] = []
    wait_action = server.plane.wait_action

    async def counted(action_id: str, seconds: float) -> object:
        looks.append(1)
        if len(looks) == 5:
            server.plane.finish("a1")
        return await wait_action(action_id, seconds)

    monkeypatch.setattr(server.plane, "wait_action", counted)
    result = ran()
    assert result.out.startswith(f"started {SLASHED}")
    lines = result.err.splitlines()
    assert lines[-1] == f"wake {SLASHED}: launching 12/40s (loading weights)"
    assert len(lines) == len(set(lines))  # one line per state, not per look


def test_an_action_that_fails_says_why_and_how_to_mend_it(server: PlaneServer, run: Run) -> None:
    server.plane.hold = True
    ran = _in_background(lambda: run("wake", "llama-70b"))
    server.until(lambda plane: plane.waits == 1)
    error = ActionError(code="model_missing", message="x.gguf does not exist", fix="correct `model:`", log_line="failed to open x.gguf")
    server.do(lambda plane: plane.fail("a1", error))
    result = ran()
    assert result.code == 1
    assert result.err.splitlines() == [
        "hotseat: wake llama-70b failed: model_missing: x.gguf does not exist",
        "  log: failed to open x.gguf",
        "fix: correct `model:`",
    ]


def test_an_action_forgotten_by_a_restarted_daemon(server: PlaneServer, run: Run) -> None:
    server.plane.hold = True
    ran = _in_background(lambda: run("wake", "llama-70b"))
    server.until(lambda plane: plane.waits == 1)
    server.do(lambda plane: plane.actions.clear())  # what a daemon knows after a restart
    result = ran()
    assert (result.code, result.err.splitlines()[-1]) == (1, "fix: see where llama-70b stands: hotseat status llama-70b")
    assert "no longer knows action a1" in result.err


class Hand:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


@pytest.mark.parametrize("try_s", [0.01, 1.0, 17.0, 100.0])
def test_patience_with_a_daemon_that_is_away_is_measured_in_time(monkeypatch: pytest.MonkeyPatch, try_s: float) -> None:
    """A refused connection is known at once; a daemon that hangs takes its time to be given up, at each try."""
    monkeypatch.setattr(actions, "LOOK_S", 0.0)
    clock = Hand()
    action = {"id": "a1", "verb": "wake", "model": "m", "state": "running", "created_at": "2026-11-30T00:00:00.000Z"}

    class Silent(Daemon):
        answers = 3

        def post(self, path: str, body: Mapping[str, object], shape: Shape = ANYTHING, *, wait_s: float = 0.0) -> Any:
            return action

        def get(self, path: str, shape: Shape = ANYTHING, *, wait_s: float = 0.0) -> Any:
            clock.now += try_s
            if self.answers:
                self.answers -= 1
                return action
            raise DaemonUnreachable("it does not answer")

    context = Context(argparse.Namespace(command="wake", model="m", no_wait=False, json=False), clock=clock)
    context._daemon = Silent([])
    with pytest.raises(DaemonUnreachable):
        actions.run(context)
    heard = 1000.0 + 3 * try_s
    assert actions.PATIENCE_S <= clock.now - heard <= actions.PATIENCE_S + try_s


def test_an_action_number_that_a_restarted_daemon_gave_to_another_action(server: PlaneServer, run: Run) -> None:
    server.plane.hold = True
    ran = _in_background(lambda: run("wake", "llama-70b"))
    server.until(lambda plane: plane.waits == 1)
    other = server.plane.actions["a1"].model_copy(update={"verb": "stop", "state": "done", "created_at": T0 + 60})
    server.do(lambda plane: plane.actions.update(a1=other))
    result = ran()
    assert (result.code, result.out) == (1, "")
    assert "no longer knows action a1" in result.err


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["status", "gemma-9k"], 4, "did you mean gemma-8k?"),
        (["wake", "nope"], 4, "there is no model 'nope'"),
        (["sleep", "gemma-8k"], 6, "fix: hotseat stop gemma-8k"),
        (["status", "x" * 200], 2, "not a model name"),
        (["logs", "nope"], 4, "there is no model"),
        (["story", "nope"], 4, "there is no model"),
        (["statsu"], 2, "did you mean 'status'"),
    ],
)
def test_exit_codes_and_what_is_said(server: PlaneServer, run: Run, words: list[str], code: int, text: str) -> None:
    ran = run(*words)
    assert (ran.code, ran.out) == (code, "")
    assert text in ran.err
    assert ran.err.startswith("hotseat: ")


def test_an_action_that_fails_for_its_state_is_6(server: PlaneServer, run: Run) -> None:
    server.plane.hold = True
    ran = _in_background(lambda: run("sleep", SLASHED))
    server.until(lambda plane: plane.waits == 1)
    server.do(
        lambda plane: plane.fail("a1", ActionError(code="sleep_unsupported", message="no level works", fix=f"hotseat stop {SLASHED}"))
    )
    assert ran().code == 6


def test_refused_because_it_does_not_fit_is_7(server: PlaneServer, run: Run) -> None:
    server.plane.hold = True
    ran = _in_background(lambda: run("wake", "llama-70b"))
    server.until(lambda plane: plane.waits == 1)
    server.do(lambda plane: plane.fail("a1", ActionError(code="does_not_fit", message="needs 90.1 GiB, gpu0 has 80.0 GiB")))
    assert ran().code == 7


def test_a_temporary_refusal_is_1(server: PlaneServer, run: Run) -> None:
    server.plane.break_with = Temporary("the store cannot commit", retry_after_s=5, code="store_unavailable", fix="free some space")
    ran = run("status")
    assert ran.code == 1
    assert ran.err == "hotseat: the store cannot commit\nfix: free some space\n"


def test_an_error_is_no_wider_than_the_terminal(server: PlaneServer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    text, fix = "the store cannot commit " * 6, "free some space " * 8
    server.plane.break_with = Temporary(text.strip(), retry_after_s=5, code="store_unavailable", fix=fix.strip())
    assert len(run("status").err.splitlines()) == 2, "in a pipe nothing is broken"
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    lines = run("status").err.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert " ".join(" ".join(lines).split()) == f"hotseat: {text.strip()} fix: {fix.strip()}"


def test_changes_over_tcp_are_not_permitted(server: PlaneServer, run: Run) -> None:
    assert run("status", "--url", server.url).code == 0
    ran = run("wake", "gemma-8k", "--url", server.url)
    assert ran.code == 5
    assert "control.sock" in ran.err
    assert run("--url", f"unix:{server.socket_path}", "wake", "gemma-8k").code == 0


def test_unreachable_says_what_was_tried_and_what_to_do(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOTSEAT_URL", raising=False)
    ran = run("status", "--state-dir", str(tmp_path))
    assert ran.code == 3
    assert ran.err.splitlines() == [
        "hotseat: no daemon answers",
        f"  tried {tmp_path}/control.sock: no such file or directory",
        "fix: start it with: hotseat serve  (hotseat doctor checks this machine)",
    ]
    monkeypatch.setenv("HOTSEAT_URL", "http://127.0.0.1:1")
    assert "tried http://127.0.0.1:1: connection refused" in run("status").err


@contextmanager
def stranger(answer: bytes) -> Iterator[str]:
    """A server that says ``answer`` to everybody and hangs up; its URL."""

    def serve() -> None:
        while True:
            connection, _ = listening.accept()
            with connection:
                if not connection.recv(65536):
                    return  # the end of the test
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass  # closing on a body that was not read would reset the connection, and lose the answer

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            socket.create_connection(listening.getsockname()).close()
            thread.join(10)


def http(status: str, body: bytes, length: int | None = None) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


EVERY_QUESTION = [
    "status",
    "status m",
    "models ls",
    "models show m",
    "devices",
    "devices show d",
    "devices --json",
    "story m",
    "logs",
    "logs m -f",
    "events",
    "events -f",
    "wake m",
]


@pytest.mark.parametrize("words", EVERY_QUESTION)
@pytest.mark.parametrize(
    "answer",
    [
        http("200 OK", b"hi"),
        http("200 OK", b"[]"),
        http("200 OK", b'{"status":"ok"}'),
        http("200 OK", b'{"items":{},"lines":{},"models":{},"name":null}'),
        http("200 OK", b"[" * 100_000),
        http("404 Not Found", b'{"detail":"Not Found"}'),
        http("500 Internal Server Error", b'{"error":{"message":"no"}}'),
    ],
)
def test_something_else_than_hotseat_answers(run: Run, words: str, answer: bytes) -> None:
    with stranger(answer) as url:
        ran = run(*words.split(), "--url", url)
    assert (ran.code, ran.out) == (3, "")
    assert "something else than hotseat answers" in ran.err


def test_the_doctor_and_the_version_survive_something_else(run: Run) -> None:
    with stranger(http("200 OK", b'{"status":"ok"}')) as url:
        assert "something else than hotseat answers" in run("doctor", "--url", url).out
        assert json.loads(run("version", "--json", "--url", url).out)["daemon"] is None


@pytest.mark.parametrize("words", EVERY_QUESTION)
@pytest.mark.parametrize(
    "answer",
    [http("200 OK", b'{"version": "0.1.0", ', 5000), http("200 OK", b"", 5000), b"HTTP/1.1 200 OK\r\nContent-", b"HTTP/1.1 20", b""],
)
def test_a_daemon_that_dies_while_it_answers_broke_off(run: Run, words: str, answer: bytes) -> None:
    with stranger(answer) as url:
        ran = run(*words.split(), "--url", url)
    assert (ran.code, ran.out) == (3, "")
    assert "broke off" in ran.err


def test_a_daemon_that_breaks_off_is_unreachable(run: Run, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "control.sock"))
        sock.listen()
        thread = threading.Thread(target=lambda: sock.accept()[0].close())
        thread.start()
        ran = run("status", "--state-dir", str(tmp_path))
        thread.join(10)
    assert ran.code == 3
    assert "broke off" in ran.err


def test_story(server: PlaneServer, run: Run) -> None:
    assert run("story", "gemma-8k").out == "gemma-8k: nothing has happened yet\n"
    entry = StoryEntry(seq=1, at=T0, instance="gemma-8k#0", from_phase="awake", to_phase="draining", event="DrainIntended", cause="hold:7")
    why = Why(code="evicted", text="evicted for coder")
    server.plane.stories["gemma-8k"] = [entry, entry.model_copy(update={"seq": 2, "reason": why})]
    lines = run("story", "gemma-8k", "-n", "1").out.splitlines()
    assert lines[0].split() == ["TIME", "FROM", "TO", "EVENT", "CAUSE", "WHY"]
    assert lines[1].endswith("awake     draining  DrainIntended hold:7 evicted: evicted for coder")
    assert lines[2] == "older entries exist: -n MORE"
    body = json.loads(run("story", "gemma-8k", "--json").out)
    assert (body["items"][0]["to"], body["has_more"]) == ("draining", False)


def test_events(server: PlaneServer, run: Run) -> None:
    assert run("events").out == "no events yet\n"
    for i in range(30):
        server.plane.add_event(f"event {i}")
    lines = run("events", "-n", "2").out.splitlines()
    assert len(lines) == 3
    assert lines[-1].endswith("phase    coder      event 29")
    assert [item["seq"] for item in json.loads(run("events", "-n", "3", "--json").out)["items"]] == [28, 29, 30]


def test_logs(server: PlaneServer, run: Run) -> None:
    server.plane.log_file("gemma-8k", 1).write_text("one\ntwo\nthree\n")
    server.plane.log_file("gemma-8k", 7).write_text("old\n")
    server.plane.log_file(None, 0).write_text("daemon\n")
    assert run("logs", "gemma-8k", "-n", "2").out == "two\nthree\n"
    assert run("logs", "gemma-8k", "-n", "0").out == ""
    assert run("logs", "gemma-8k", "--launch", "7").out == "old\n"
    assert run("logs").out == "daemon\n"
    assert json.loads(run("logs", "gemma-8k", "--json").out)["lines"] == ["one", "two", "three"]


def test_version(server: PlaneServer, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scheduler.cli.commands import version

    monkeypatch.setattr(version, "VERSION", "0.1.0")
    assert run("version").out == "hotseat 0.1.0\n"
    server.plane.base = server.plane.base.model_copy(update={"version": "0.0.9"})
    assert "the running daemon is 0.0.9; restart it" in run("--version").out
    assert json.loads(run("version", "--json").out) == {"version": "0.1.0", "daemon": "0.0.9"}
    ran = run("version", "--state-dir", str(tmp_path / "none"))
    assert (ran.code, ran.out) == (0, "hotseat 0.1.0\n")


def test_output_that_the_terminal_cannot_show_does_not_end_the_command(server: PlaneServer, capfdbinary: object) -> None:
    import subprocess
    import sys

    server.do(lambda plane: plane.models.update({m.name: worlds.detail(m) for m in worlds.strange().models}))
    environ = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "POSIX"}
    done = subprocess.run([sys.executable, "-m", "scheduler.cli.main", "status"], capture_output=True, timeout=20, env=environ)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"caf?" in done.stdout
