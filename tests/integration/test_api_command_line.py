"""The command as a process of its own: watching, following, Ctrl-C, pipes, terminals, a daemon that restarts."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.cli.render.text import width
from tests.support import worlds
from tests.support.fake_plane import FakePlane, PlaneServer

COMMAND = [sys.executable, "-m", "scheduler.cli.main"]


def new_plane(folder: Path) -> FakePlane:
    return FakePlane([worlds.awake_card(), worlds.failing_card(), worlds.detail(worlds.model("coder", engine="command"))], logs=folder)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PlaneServer]:
    with PlaneServer(tmp_path, new_plane(tmp_path)) as server:
        yield server


def environ(folder: Path, **more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("HOTSEAT_URL", "NO_COLOR", "TERM", "COLUMNS", "LINES")}
    return {**kept, "HOTSEAT_STATE_DIR": str(folder), "TERM": "xterm", "PYTHONUTF8": "1", **more}


class Stream:
    """Reads a descriptor until something is seen; the end of the stream or ten seconds without it fail the test."""

    def __init__(self, fd: int) -> None:
        self.fd, self.seen = fd, ""

    def until(self, words: str) -> str:
        while words not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], 10)
            assert ready, f"waited for {words!r}, saw {self.seen!r}"
            data = self._read()
            assert data, f"ended before {words!r}, saw {self.seen!r}"
            self.seen += data
        found, _, self.seen = self.seen.partition(words)
        return found + words

    def _read(self) -> str:
        try:
            return os.read(self.fd, 65536).decode("utf-8", "replace")
        except OSError:  # a terminal whose other side is closed
            return ""

    def rest(self) -> str:
        while data := self._read():
            self.seen += data
        return self.seen


class Process:
    def __init__(self, folder: Path, *words: str, out: int = subprocess.PIPE, err: int = subprocess.PIPE, **more: str) -> None:
        self.process = subprocess.Popen([*COMMAND, *words], stdout=out, stderr=err, env=environ(folder, **more))
        self.out = Stream(self.process.stdout.fileno()) if self.process.stdout else None
        self.err = Stream(self.process.stderr.fileno()) if self.process.stderr else None

    def end(self, sign: int | None = None) -> int:
        if sign is not None:
            self.process.send_signal(sign)
        code = self.process.wait(15)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()
        return code


class Terminal(Process):
    """The command on a terminal of ``rows`` x ``columns``."""

    def __init__(self, folder: Path, *words: str, rows: int = 24, columns: int = 80, **more: str) -> None:
        main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        super().__init__(folder, *words, out=other, err=other, **more)
        os.close(other)
        self.main = main
        self.screen = Stream(main)

    def close(self) -> None:
        os.close(self.main)


def test_ctrl_c_leaves_an_action_running(server: PlaneServer) -> None:
    server.plane.hold = True
    process = Process(server.state_dir, "wake", "coder")
    server.until(lambda plane: plane.waits == 1)
    process.process.send_signal(signal.SIGINT)
    assert process.err is not None
    assert process.err.rest() == "left running: action a1; see hotseat status coder\n"
    assert process.end() == 130
    assert server.plane.actions["a1"].state == "running"


def test_an_action_outlives_a_daemon_that_is_away_for_a_moment(tmp_path: Path) -> None:
    plane = new_plane(tmp_path)
    plane.hold = True
    with PlaneServer(tmp_path, plane) as server:
        process = Process(tmp_path, "wake", "coder")
        server.until(lambda plane: plane.waits == 1)
    assert process.err is not None
    process.err.until("daemon unreachable, trying again")
    again = new_plane(tmp_path)
    again.actions = plane.actions
    again.acts = plane.acts
    again.finish("a1")
    with PlaneServer(tmp_path, again):
        assert process.out is not None
        process.out.until("started coder on cpu0")
        assert process.end() == 0


def test_watch_in_a_pipe_prints_a_block_per_change_and_survives_restarts(tmp_path: Path) -> None:
    with PlaneServer(tmp_path, new_plane(tmp_path)) as server:
        process = Process(tmp_path, "status", "-w", "--interval", "0.05")
        out, err = process.out, process.err
        assert out is not None
        assert err is not None
        first = out.until("\n\n")
        assert "1 stopped: coder\n" in first
        server.do(lambda plane: plane.models.update(coder=worlds.detail(worlds.model("coder", "awake", on="cpu0", used_bytes=1 << 30))))
        second = out.until("\n\n")
        assert second.count("\n") > 5
        assert "coder      awake" in second
    assert "daemon unreachable since" in err.until("trying again")
    with PlaneServer(tmp_path, new_plane(tmp_path)):
        assert "1 stopped: coder\n" in out.until("\n\n")
        process.process.send_signal(signal.SIGINT)
        assert out.rest() == ""
        assert "Traceback" not in err.rest()
        assert process.end() == 0


def test_watch_json_is_a_line_per_change(server: PlaneServer) -> None:
    process = Process(server.state_dir, "status", "-w", "--json", "--interval", "0.05")
    assert process.out is not None
    first = json.loads(process.out.until("\n"))
    server.do(lambda plane: setattr(plane, "degraded", list(worlds.broken().degraded)))
    second = json.loads(process.out.until("\n"))
    assert (first["degraded"], len(second["degraded"])) == ([], 2)
    assert process.end(signal.SIGINT) == 0


def test_watch_of_a_model_that_is_unknown_ends(server: PlaneServer) -> None:
    process = Process(server.state_dir, "status", "-w", "codre")
    assert process.err is not None
    assert "did you mean coder?" in process.err.rest()
    assert process.end() == 4


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_watch_on_a_terminal_redraws_in_place_and_gives_the_screen_back(tmp_path: Path, sign: int) -> None:
    with PlaneServer(tmp_path, new_plane(tmp_path)) as server:
        terminal = Terminal(tmp_path, "status", "-w", "--interval", "0.05")
        terminal.screen.until("\x1b[?1049h")
        terminal.screen.until("1 stopped: coder")
        server.do(lambda plane: plane.models.update(coder=worlds.detail(worlds.model("coder", "asleep", on="cpu0", level=1))))
        frame = terminal.screen.until("asleep 1")
        assert "\x1b[H" in frame
        assert "\x1b[K" in frame
    terminal.screen.until("daemon unreachable since")
    assert "asleep 1" in terminal.screen.until("asleep 1")  # the last known state stays below
    with PlaneServer(tmp_path, new_plane(tmp_path)):
        terminal.screen.until("1 stopped: coder")
        terminal.process.send_signal(sign)
        rest = terminal.screen.rest()
    assert terminal.end() == 0
    assert "\x1b[?25h\x1b[?1049l" in rest
    assert "1 stopped: coder" in rest.partition("\x1b[?1049l")[2]
    assert "Traceback" not in rest
    terminal.close()


def test_watch_never_draws_more_rows_than_the_terminal_has(server: PlaneServer) -> None:
    server.do(lambda plane: plane.models.update({m.name: worlds.detail(m) for m in worlds.crowd().models}))
    terminal = Terminal(server.state_dir, "status", "-w", "--interval", "0.05", rows=10, columns=60)
    terminal.screen.until("\x1b[H")
    frame = terminal.screen.until("\x1b[J")
    assert frame.count("\r\n") <= 9
    assert "more lines" in frame
    assert terminal.end(signal.SIGINT) == 0
    terminal.close()


def test_watch_never_draws_a_line_wider_than_the_terminal(tmp_path: Path) -> None:
    def widest(frame: str) -> int:
        lines = re.sub(r"\x1b\[[?\d]*[a-zA-Z]", "", frame).split("\n")
        return max(width(line.rstrip("\r")) for line in lines)

    with PlaneServer(tmp_path, new_plane(tmp_path)) as server:
        server.do(lambda plane: plane.models.update({m.name: worlds.detail(m) for m in worlds.strange().models}))
        terminal = Terminal(tmp_path, "status", "-w", "--interval", "0.05", rows=200, columns=30)
        terminal.screen.until("\x1b[H")
        assert widest(terminal.screen.until("\x1b[J")) == 30
    frame = ""
    while "daemon unreachable since" not in frame:
        frame = terminal.screen.until("\x1b[J")
    assert widest(frame) == 30
    assert terminal.end(signal.SIGINT) == 0
    terminal.close()


def test_colour_on_a_terminal_only_and_not_with_no_color(server: PlaneServer) -> None:
    for more, value, coloured in (("TERM", "xterm", True), ("NO_COLOR", "1", False), ("TERM", "dumb", False)):
        terminal = Terminal(server.state_dir, "status", **{more: value})  # type: ignore[arg-type]
        text = terminal.screen.rest()
        assert terminal.end() == 0
        assert ("\x1b[31m" in text) is coloured
        assert "llama-70b" in text
        terminal.close()
    piped = Process(server.state_dir, "status")
    assert piped.out is not None
    assert "\x1b" not in piped.out.rest()
    assert piped.end() == 0


def test_logs_follow_new_lines_and_new_launches(server: PlaneServer) -> None:
    path = server.plane.log_file("gemma-8k", 1)
    path.write_text("one\ntwo\n")
    process = Process(server.state_dir, "logs", "gemma-8k", "-f", "-n", "1")
    assert process.out is not None
    assert process.out.until("two\n") == "two\n"
    with path.open("a") as file:
        file.write("three\n")
    assert process.out.until("three\n") == "three\n"
    server.plane.log_file("gemma-8k", 2).write_text("fresh start\n")
    server.do(lambda plane: setattr(plane, "launch", 2))
    assert process.out.until("fresh start\n") == "fresh start\n"
    assert process.err is not None
    process.err.until("--- launch 2 ---")
    assert process.end(signal.SIGINT) == 0


def test_logs_on_a_terminal_cannot_control_it(server: PlaneServer) -> None:
    server.plane.log_file("gemma-8k", 1).write_text("evil \x1b]0;title\x07 \x1b[2J end\n")
    terminal = Terminal(server.state_dir, "logs", "gemma-8k")
    assert "evil ?]0;title? ?[2J end" in terminal.screen.rest()
    assert terminal.end() == 0
    terminal.close()


def test_events_follow_through_a_restart(tmp_path: Path) -> None:
    plane = new_plane(tmp_path)
    plane.add_event("first")
    with PlaneServer(tmp_path, plane) as server:
        process = Process(tmp_path, "events", "-f", "--json")
        assert process.out is not None
        assert json.loads(process.out.until("\n"))["text"] == "first"
        server.do(lambda plane: plane.add_event("second"))
        assert json.loads(process.out.until("\n"))["text"] == "second"
    again = new_plane(tmp_path)
    again.feed = list(plane.feed)
    again.add_event("while the daemon was away")
    with PlaneServer(tmp_path, again):
        assert json.loads(process.out.until("\n"))["seq"] == 3
        assert process.end(signal.SIGINT) == 0


def test_a_reader_that_has_seen_enough_gets_no_traceback(server: PlaneServer) -> None:
    process = Process(server.state_dir, "models", "ls")
    assert process.process.stdout is not None
    process.process.stdout.close()
    assert process.err is not None
    assert process.err.rest() == ""
    assert process.process.wait(15) == 141
    process.process.stderr.close()  # type: ignore[union-attr]
