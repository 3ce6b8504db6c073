"""The launcher ``process`` against real processes: gate, groups, signals, ports, adoption after kill -9."""

import asyncio
import errno
import gc
import os
import signal
import socket
import stat as stat_module
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from adapters.launchers import process as process_module
from adapters.launchers.gate import WaitingChild, start_waiting
from adapters.launchers.groups import GroupMemory, find_members
from adapters.launchers.process import ProcessGate, ProcessLauncher
from adapters.launchers.signals import signal_members
from adapters.launchers.waiting import wait_readable
from adapters.procfs.processes import TOKEN_VARIABLE, ProcessScanner, read_stat
from scheduler.domain.errors import Conflict, HotseatError, Permanent
from scheduler.ports.launcher import ExitInfo, Launcher, ProcessHandle, SpawnRequest
from tests.support.hub import Hub

REPOSITORY = Path(__file__).parents[2]
#: Of this test process alone: tests of another worker run at the same time, and processes are found by it.
UUID = f"5c5e5a3e-0000-4000-8000-{os.getpid():012x}"


@pytest.fixture
def launcher() -> ProcessLauncher:
    return ProcessLauncher()


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub() as hub:
        yield hub


def request_for(
    argv: tuple[str, ...], folder: Path, *, launch: str = "1", env: dict[str, str] | None = None, cwd: str | None = None
) -> SpawnRequest:
    return SpawnRequest(
        argv=argv,
        env={"PATH": os.defpath} if env is None else env,
        cwd=str(folder) if cwd is None else cwd,
        log_path=str(folder / "engine.log"),
        token=f"{UUID}-{folder.name}:{launch}",
    )


async def start(launcher: Launcher, argv: tuple[str, ...], folder: Path, launch: str = "1") -> ProcessHandle:
    gate = await launcher.spawn(request_for(argv, folder, launch=launch))
    await gate.release()
    return gate.handle


async def end_of(pid: int) -> None:
    """Return when a process that may not be our child has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        await wait_readable(pidfd)
    finally:
        os.close(pidfd)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


# --- the gate -----------------------------------------------------------------------------------------------------------


async def test_released_child_becomes_the_engine_under_the_same_identity(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    gate = await launcher.spawn(request_for(hub.argv("serve", "engine"), tmp_path))
    assert await launcher.leader_alive(gate.handle)
    assert await launcher.members(gate.handle) == {gate.handle.pid}
    assert os.getsid(gate.handle.pid) == gate.handle.pid
    await gate.release()
    assert await hub.pid("engine") == gate.handle.pid
    running = read_stat(gate.handle.pid)
    assert running is not None
    assert running.start_ticks == gate.handle.start_ticks
    assert await launcher.leader_alive(gate.handle)
    with pytest.raises(ConnectionError):
        await hub.tell("engine", "exit 3")
    assert await launcher.wait_leader(gate.handle) == ExitInfo(code=3)
    assert not await launcher.leader_alive(gate.handle)
    assert await launcher.members(gate.handle) == frozenset()
    assert read_stat(gate.handle.pid) is None, "the zombie was not buried"
    assert await launcher.wait_leader(gate.handle) == ExitInfo(code=3), "asked again, it forgot"


async def test_abandoned_child_never_runs_the_engine(launcher: ProcessLauncher, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    gate = await launcher.spawn(request_for(("touch", str(mark)), tmp_path))
    await gate.abandon()
    await gate.abandon()
    assert read_stat(gate.handle.pid) is None
    assert not mark.exists()
    assert await launcher.members(gate.handle) == frozenset()
    with pytest.raises(Conflict):
        await gate.release()


async def test_abandon_after_release_does_not_touch_the_engine(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    gate = await launcher.spawn(request_for(hub.argv("serve", "engine"), tmp_path))
    await gate.release()
    await gate.abandon()
    assert await hub.tell("engine", "print still-here") == ""
    with pytest.raises(Conflict):
        await gate.release()


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
async def test_forgotten_gate_ends_its_child(launcher: ProcessLauncher, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    gate = await launcher.spawn(request_for(("touch", str(mark)), tmp_path))
    handle = gate.handle
    del gate
    gc.collect(1)  # what is young; the whole heap of a test run would hold the loop up
    assert await launcher.wait_leader(handle) == ExitInfo(code=0)
    assert not mark.exists()


async def test_cancelled_spawn_leaves_no_child_waiting(launcher: ProcessLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[WaitingChild] = []
    cancelled = threading.Event()
    began, done = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow_start(request: SpawnRequest, oom_score: int) -> WaitingChild:
        loop.call_soon_threadsafe(began.set)
        assert cancelled.wait(10)
        started.append(start_waiting(request, oom_score))
        loop.call_soon_threadsafe(done.set)
        return started[0]

    monkeypatch.setattr(process_module, "start_waiting", slow_start)
    mark = tmp_path / "ran"
    spawning = asyncio.create_task(launcher.spawn(request_for(("touch", str(mark)), tmp_path)))
    await began.wait()
    spawning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await spawning
    cancelled.set()
    await done.wait()
    await end_of(started[0].pid)
    assert not mark.exists()
    assert await launcher.owned(f"{UUID}-{tmp_path.name}") == []
    assert read_stat(started[0].pid) is None, "the zombie was not buried"


async def test_engine_inherits_nothing_but_what_was_asked_for(
    launcher: ProcessLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTSEAT_SECRET", "leaked")
    leaked = os.open("/dev/zero", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    old_mask = os.umask(0o077)
    old_handler = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    script = "env -0 | tr '\\0' '\\n'; ls -l /proc/$$/fd; umask; pwd"
    env = {"PATH": os.defpath, "NAME": "ü = \n2", "EMPTY": ""}
    try:
        for argv in (("sh", "-c", script), ("cat", "/proc/self/status", "/proc/self/oom_score_adj")):
            gate = await launcher.spawn(request_for(argv, tmp_path, env=env))
            await gate.release()
            assert await launcher.wait_leader(gate.handle) == ExitInfo(code=0)
    finally:
        os.close(leaked)
        os.umask(old_mask)
        signal.signal(signal.SIGUSR1, old_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
    log = (tmp_path / "engine.log").read_text()
    lines = log.splitlines()
    shell = f"PWD={tmp_path}"  # added by the shell itself
    token = f"{TOKEN_VARIABLE}={UUID}-{tmp_path.name}:1"
    files = next(number for number, line in enumerate(lines) if line.startswith("total"))
    assert sorted(lines[:files]) == sorted([f"PATH={os.defpath}", "NAME=ü = ", "2", "EMPTY=", token, shell])
    shown = [line.partition(" -> ")[2] for line in lines if " -> " in line]
    assert shown == ["/dev/null", str(tmp_path / "engine.log"), str(tmp_path / "engine.log")]
    named = lines.index("Name:\tcat")
    assert lines[named - 2 : named] == ["0022", str(tmp_path)]
    status = dict(line.split(":\t", 1) for line in lines[named:-1])
    assert int(status["SigBlk"], 16) == 0
    assert int(status["SigIgn"], 16) & ~(0b11 << 31) == 0, "32 and 33 are the C library's own, set so by posix_spawn"
    assert lines[-1] == "500"
    assert stat_module.S_IMODE((tmp_path / "engine.log").stat().st_mode) == 0o640 & ~0o077


async def test_log_is_appended_to_and_can_be_truncated_in_place(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("earlier launch\n")
    await start(launcher, hub.argv("serve", "engine"), tmp_path)
    await hub.tell("engine", "print one")
    assert log.read_text() == "earlier launch\none\n"
    os.truncate(log, 0)
    await hub.tell("engine", "print two")
    assert log.read_bytes() == b"two\n"


def _script(folder: Path, text: str, mode: int = 0o755) -> str:
    path = folder / "engine"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("make_argv", "code", "words"),
    [
        (lambda _: ("no-such-engine", "--x"), "executable_missing", ["no-such-engine", "PATH", os.defpath]),
        (lambda folder: (f"{folder}/none",), "executable_missing", ["/none", "no program"]),
        (lambda folder: (_script(folder, "#!/bin/sh\n", 0o644),), "executable_missing", ["engine", os.strerror(errno.EACCES)]),
        (lambda folder: (str(folder),), "executable_missing", [os.strerror(errno.EACCES)]),
        (lambda folder: (_script(folder, "#!/no/such/python\n"),), "executable_missing", ["interpreter", "first line"]),
        (lambda folder: (_script(folder, "just text\n"),), "executable_missing", [os.strerror(errno.ENOEXEC)]),
        (lambda _: ("true", "x" * 3_000_000), "crashed", ["'true'", "3000", "bytes"]),
    ],
)
async def test_release_says_why_the_engine_cannot_be_run(
    launcher: ProcessLauncher, tmp_path: Path, make_argv, code: str, words: list[str]
) -> None:
    before = open_files()
    gate = await launcher.spawn(request_for(make_argv(tmp_path), tmp_path))
    with pytest.raises(Permanent) as failure:
        await gate.release()
    assert failure.value.code == code
    assert failure.value.fix
    for word in words:
        assert word in failure.value.message
    assert read_stat(gate.handle.pid) is None
    assert await launcher.wait_leader(gate.handle) == ExitInfo(code=127)
    assert open_files() == before


async def test_bad_directory_is_named(launcher: ProcessLauncher, tmp_path: Path) -> None:
    gate = await launcher.spawn(request_for(("true",), tmp_path, cwd=f"{tmp_path}/gone"))
    with pytest.raises(Permanent, match=r"cannot enter the working directory .*gone.*No such file"):
        await gate.release()


@pytest.mark.parametrize(
    ("argv", "env", "words"),
    [
        ((), {}, "command line is empty"),
        (("",), {}, "command line is empty"),
        (("true", "a\0b"), {}, "argument .* NUL"),
        (("true",), {"A": "x\0"}, "environment variable .* NUL"),
        (("true", "\ud800"), {}, "argument .* half a character"),
        (("true",), {"A=B": "x"}, "'A=B' cannot be the name"),
        (("true",), {"": "x"}, "'' cannot be the name"),
    ],
)
async def test_spawn_refuses_what_no_kernel_takes(
    launcher: ProcessLauncher, tmp_path: Path, argv: tuple[str, ...], env: dict[str, str], words: str
) -> None:
    with pytest.raises(Permanent, match=words):
        await launcher.spawn(request_for(argv, tmp_path, env=env))


async def test_unwritable_log_fails_the_spawn_and_leaks_nothing(launcher: ProcessLauncher, tmp_path: Path) -> None:
    before = open_files()
    request = SpawnRequest(argv=("true",), env={}, cwd="/", log_path=f"{tmp_path}/none/engine.log", token="x:1")
    with pytest.raises(HotseatError, match=r"none/engine\.log") as failure:
        await launcher.spawn(request)
    assert "none/engine.log" in failure.value.fix
    assert open_files() == before


async def test_child_that_dies_at_the_gate_fails_the_release(launcher: ProcessLauncher, tmp_path: Path) -> None:
    gate = await launcher.spawn(request_for(("true",), tmp_path))
    os.kill(gate.handle.pid, signal.SIGKILL)
    assert (await launcher.wait_leader(gate.handle)).signal == signal.SIGKILL
    with pytest.raises(Permanent, match="ended before it was started"):
        await gate.release()


async def test_many_launches_at_once_do_not_mix_or_leak(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    before = open_files()
    names = [f"e{number}" for number in range(8)]
    gates = await asyncio.gather(*(launcher.spawn(request_for(hub.argv("serve", name), tmp_path, launch=name)) for name in names))
    await asyncio.gather(*(gate.release() for gate in gates))
    for name, gate in zip(names, gates, strict=True):
        assert await hub.pid(name) == gate.handle.pid
        assert await launcher.members(gate.handle) == {gate.handle.pid}
    await asyncio.gather(*(launcher.terminate(gate.handle, kill=True) for gate in gates))
    exits = await asyncio.gather(*(launcher.wait_leader(gate.handle) for gate in gates))
    assert exits == [ExitInfo(signal=signal.SIGKILL)] * len(names)
    await asyncio.gather(*(hub.ended(name) for name in names))
    assert open_files() <= before + len(names)  # the hub's ends of the connections


# --- the daemon dies ----------------------------------------------------------------------------------------------------

DAEMON = """
import asyncio, sys
from adapters.launchers.groups import GroupMemory, find_members
from adapters.launchers.process import ProcessLauncher
from scheduler.ports.launcher import SpawnRequest

async def main():
    folder, token, *argv = sys.argv[1:]
    request = SpawnRequest(argv=tuple(argv), env={"PATH": "/usr/bin:/bin"}, cwd=folder, log_path=folder + "/engine.log", token=token)
    gate = await ProcessLauncher().spawn(request)
    print(gate.handle.boot_id, gate.handle.pid, gate.handle.start_ticks, flush=True)
    if await asyncio.to_thread(sys.stdin.readline):
        await gate.release()
        print("released", flush=True)
    await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


class Daemon:
    """Another process that uses the launcher, to be killed."""

    def __init__(self, folder: Path, token: str, argv: tuple[str, ...]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", DAEMON, str(folder), token, *argv],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    async def __aenter__(self) -> "Daemon":
        boot_id, pid, ticks = (await self.line()).split()
        self.handle = ProcessHandle(boot_id=boot_id, pid=int(pid), start_ticks=int(ticks))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()

    async def line(self) -> str:
        assert self.process.stdout is not None
        return await asyncio.to_thread(self.process.stdout.readline)

    async def release(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("release\n")
        self.process.stdin.flush()
        assert await self.line() == "released\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


async def test_kill_9_before_release_ends_the_child_by_itself(launcher: ProcessLauncher, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    async with Daemon(tmp_path, f"{UUID}-k:1", ("touch", str(mark))) as daemon:
        assert await launcher.leader_alive(daemon.handle)
        daemon.kill()
        assert await launcher.wait_leader(daemon.handle) == ExitInfo()
        assert await launcher.members(daemon.handle) == frozenset()
        assert not mark.exists()


async def test_kill_9_after_release_leaves_an_engine_that_can_be_adopted(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    async with Daemon(tmp_path, f"{UUID}-k:1", hub.argv("serve", "engine")) as daemon:
        await daemon.release()
        await hub.pid("engine")
        daemon.kill()
        assert await hub.tell("engine", "print alive") == ""
        assert await launcher.leader_alive(daemon.handle)
        assert await launcher.members(daemon.handle) == {daemon.handle.pid}
        assert [owned.handle for owned in await launcher.owned(f"{UUID}-k")] == [daemon.handle]
        waiting = asyncio.create_task(launcher.wait_leader(daemon.handle))
        await launcher.terminate(daemon.handle, kill=False)
        assert await waiting == ExitInfo(), "how a stranger's child ended cannot be known"
        assert await launcher.members(daemon.handle) == frozenset()


async def test_restarted_daemon_finds_children_that_lost_leader_and_token(hub: Hub, tmp_path: Path) -> None:
    async with Daemon(tmp_path, f"{UUID}-k:1", hub.argv("fork", "worker", "serve", "engine")) as daemon:
        await daemon.release()
        worker, leader = await hub.pid("worker"), await hub.pid("engine")
        await hub.tell("worker", "erase-env")
        daemon.kill()
        os.kill(leader, signal.SIGKILL)
        await end_of(leader)
        restarted = ProcessLauncher()
        assert not await restarted.leader_alive(daemon.handle)
        assert await restarted.members(daemon.handle) == {worker}
        await restarted.terminate(daemon.handle, kill=True)
        await end_of(worker)
        assert await restarted.members(daemon.handle) == frozenset()


# --- groups -------------------------------------------------------------------------------------------------------------


async def test_wrapper_and_its_child_are_one_group(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    handle = await start(launcher, ("bash", "-c", '"$@" & wait', "wrapper", *hub.argv("serve", "engine")), tmp_path)
    engine = await hub.pid("engine")
    assert engine != handle.pid
    assert await launcher.members(handle) == {handle.pid, engine}
    await launcher.terminate(handle, kill=False)
    await hub.ended("engine")
    await launcher.wait_leader(handle)
    await end_of(engine)
    assert await launcher.members(handle) == frozenset()


async def test_child_that_outlives_its_leader_is_still_the_group(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    handle = await start(launcher, hub.argv("fork", "worker", "serve", "engine"), tmp_path)
    worker = await hub.pid("worker")
    await hub.pid("engine")
    with pytest.raises(ConnectionError):
        await hub.tell("engine", "exit 1")
    assert await launcher.wait_leader(handle) == ExitInfo(code=1)
    assert not await launcher.leader_alive(handle)
    assert await launcher.members(handle) == {worker}
    await launcher.terminate(handle, kill=False)
    await hub.ended("worker")
    await end_of(worker)
    assert await launcher.members(handle) == frozenset()


@pytest.mark.parametrize("erase", [False, True])
async def test_double_forked_daemon_belongs_to_the_group(launcher: ProcessLauncher, hub: Hub, tmp_path: Path, erase: bool) -> None:
    handle = await start(launcher, hub.argv("daemonise", "escapee", "serve", "engine"), tmp_path)
    escapee = await hub.pid("escapee")
    assert os.getsid(escapee) != handle.pid
    assert await launcher.members(handle) == {handle.pid, escapee}
    if erase:  # the token was seen once: from then on the process is known
        await hub.tell("escapee", "erase-env")
    with pytest.raises(ConnectionError):
        await hub.tell("engine", "exit 0")
    await launcher.wait_leader(handle)
    assert await launcher.members(handle) == {escapee}
    await launcher.terminate(handle, kill=True)
    await hub.ended("escapee")
    await end_of(escapee)
    assert await launcher.members(handle) == frozenset()


async def test_child_of_a_double_forked_daemon_that_lost_its_token_belongs_too(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    handle = await start(launcher, hub.argv("daemonise", "escapee", "serve", "engine"), tmp_path)
    await hub.tell("escapee", "fork grandchild")
    await hub.tell("grandchild", "erase-env")
    assert await launcher.members(handle) == {handle.pid, await hub.pid("escapee"), await hub.pid("grandchild")}


async def test_leader_that_overwrote_its_environment_is_still_recognised(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    handle = await start(launcher, hub.argv("erase-env", "fork", "worker", "serve", "engine"), tmp_path)
    worker = await hub.pid("worker")
    await hub.pid("engine")
    fresh = ProcessLauncher()
    assert await fresh.members(handle) == await launcher.members(handle) == {handle.pid, worker}
    assert await fresh.owned(f"{UUID}-{tmp_path.name}") == []


async def test_zombie_is_dead(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    handle = await start(launcher, hub.argv("fork", "worker", "serve", "engine"), tmp_path)
    worker = await hub.pid("worker")
    await hub.pid("engine")
    with pytest.raises(ConnectionError):
        await hub.tell("worker", "exit 0")
    await end_of(worker)
    zombie = read_stat(worker)  # its parent, the engine, never waits
    assert zombie is not None
    assert zombie.state == "Z"
    assert await launcher.members(handle) == {handle.pid}


async def test_process_whose_main_thread_left_is_alive(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    handle = await start(launcher, hub.argv("serve-in-thread", "engine"), tmp_path)
    await hub.pid("engine")
    await hub.tell("engine", "join-main")
    shown = read_stat(handle.pid)
    assert shown is not None
    assert shown.state == "Z"
    assert await launcher.leader_alive(handle)
    assert await launcher.members(handle) == {handle.pid}
    with pytest.raises(ConnectionError):
        await hub.tell("engine", "exit 5")
    assert await launcher.wait_leader(handle) == ExitInfo(code=5)


# --- waiting ------------------------------------------------------------------------------------------------------------


async def test_every_waiter_learns_how_it_ended_and_cancelled_ones_leak_nothing(
    launcher: ProcessLauncher, hub: Hub, tmp_path: Path
) -> None:
    handle = await start(launcher, hub.argv("serve", "engine"), tmp_path)
    await hub.pid("engine")
    before = open_files()
    waiters = [asyncio.create_task(launcher.wait_leader(handle)) for _ in range(10)]
    await asyncio.gather(*(launcher.members(handle) for _ in range(3)))
    assert not any(waiter.done() for waiter in waiters)
    for waiter in waiters[:5]:
        waiter.cancel()
    assert all(isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*waiters[:5], return_exceptions=True))
    await launcher.terminate(handle, kill=False)
    assert await asyncio.gather(*waiters[5:]) == [ExitInfo(signal=signal.SIGTERM)] * 5
    assert open_files() == before


async def test_cancelled_release_can_be_cleaned_up(launcher: ProcessLauncher, tmp_path: Path) -> None:
    before = open_files()
    gate = await launcher.spawn(request_for(("cat", "/dev/zero"), tmp_path))
    os.kill(gate.handle.pid, signal.SIGSTOP)
    releasing = asyncio.create_task(gate.release())
    await asyncio.sleep(0)  # it has written to the gate and waits for the stopped child
    assert open_files() == before + 1
    releasing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await releasing
    assert open_files() == before
    await launcher.terminate(gate.handle, kill=True)
    assert await launcher.wait_leader(gate.handle) == ExitInfo(signal=signal.SIGKILL)


# --- signals ------------------------------------------------------------------------------------------------------------


async def test_engine_that_ignores_term_is_ended_by_kill(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    handle = await start(launcher, hub.argv("ignore-term", "fork", "worker", "serve", "engine"), tmp_path)
    await hub.pid("worker")
    await launcher.terminate(handle, kill=False)
    assert await hub.tell("engine", "print survived") == await hub.tell("worker", "print survived") == ""
    await launcher.terminate(handle, kill=True)
    assert await launcher.wait_leader(handle) == ExitInfo(signal=signal.SIGKILL, oom_killed=False)
    await hub.ended("worker")


async def test_stopped_engine_acts_on_term(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    handle = await start(launcher, hub.argv("serve", "engine"), tmp_path)
    os.kill(await hub.pid("engine"), signal.SIGSTOP)
    await launcher.terminate(handle, kill=False)
    assert await launcher.wait_leader(handle) == ExitInfo(signal=signal.SIGTERM)


async def test_member_in_a_process_group_of_its_own_is_reached(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    handle = await start(launcher, hub.argv("fork", "worker", "serve", "engine"), tmp_path)
    await hub.tell("worker", "new-group")
    assert os.getpgid(await hub.pid("worker")) != handle.pid
    await launcher.terminate(handle, kill=False)
    await hub.ended("worker")
    assert await launcher.wait_leader(handle) == ExitInfo(signal=signal.SIGTERM)


async def test_each_process_is_signalled_once(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    handle = await start(launcher, hub.argv("queue-signals", "fork", "worker", "serve", "engine"), tmp_path)
    await hub.tell("worker", "new-group")
    await hub.pid("engine")
    table = ProcessScanner().scan()
    members = find_members(handle, table, GroupMemory(), lambda _: False)
    queueing = signal.Signals(signal.SIGRTMIN)  # unlike TERM, a second one is not merged with the first
    assert signal_members(members, table, queueing) == []
    assert (await hub.tell("engine", "signals"), await hub.tell("worker", "signals")) == ("1", "1")


async def test_kill_reaches_a_child_born_after_the_look(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    handle = await start(launcher, hub.argv("serve", "engine"), tmp_path)
    await hub.pid("engine")
    table = ProcessScanner().scan()
    members = find_members(handle, table, GroupMemory(), lambda _: False)
    await hub.tell("engine", "fork late")
    late = await hub.pid("late")
    assert late not in table.by_pid
    assert signal_members(members, table, signal.SIGKILL) == []
    await end_of(late)


async def test_group_with_a_stranger_in_it_is_signalled_one_by_one(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    await start(launcher, hub.argv("fork", "worker", "serve", "engine"), tmp_path)
    worker = await hub.pid("worker")
    await hub.pid("engine")
    table = ProcessScanner().scan()
    assert signal_members([table.by_pid[worker]], table, signal.SIGKILL) == []
    await end_of(worker)
    assert await hub.tell("engine", "print alive") == ""


async def test_a_line_of_its_log_is_activity(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    handle = await start(launcher, hub.argv("serve", "engine"), tmp_path)
    await hub.pid("engine")
    log = str(tmp_path / "engine.log")
    before = await launcher.activity(handle, log)
    await hub.tell("engine", "print loading")
    assert await launcher.activity(handle, log) >= before + len("loading\n")
    with pytest.raises(ConnectionError):
        await hub.tell("engine", "exit 0")
    await launcher.wait_leader(handle)
    assert await launcher.activity(handle, log) == os.stat(log).st_size


async def test_process_that_keeps_forking_away_is_killed(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    handle = await start(launcher, hub.argv("fork", "hopper", "serve", "engine"), tmp_path)
    await hub.pid("hopper")  # one that is killed before it has called us would be waited for without end
    hopping = asyncio.create_task(hub.tell("hopper", "hop"))
    with pytest.raises(ConnectionError):
        await hub.tell("engine", "exit 0")
    await launcher.wait_leader(handle)
    await launcher.terminate(handle, kill=True)
    with pytest.raises(ConnectionError):
        await hopping
    for pid in await launcher.members(handle):  # the last of them may still be on its way out
        await end_of(pid)
    assert await launcher.members(handle) == frozenset()


async def test_handle_of_another_process_touches_nobody(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    handle = await start(launcher, hub.argv("fork", "worker", "serve", "engine"), tmp_path)
    await hub.pid("worker")
    await hub.pid("engine")
    before = open_files()
    for wrong in (
        ProcessHandle(boot_id=handle.boot_id, pid=handle.pid, start_ticks=handle.start_ticks - 1),
        ProcessHandle(boot_id="another boot", pid=handle.pid, start_ticks=handle.start_ticks),
        ProcessHandle(boot_id=handle.boot_id, pid=1, start_ticks=0),
        ProcessHandle(boot_id=handle.boot_id, pid=0, start_ticks=0),
        ProcessHandle(boot_id=handle.boot_id, pid=-1, start_ticks=0),
    ):
        assert not await launcher.leader_alive(wrong)
        assert await launcher.members(wrong) == frozenset()
        assert await launcher.wait_leader(wrong) == ExitInfo()
        assert await launcher.owns_port(wrong, 1) is False
        await launcher.terminate(wrong, kill=True)
    assert await hub.tell("engine", "print alive") == await hub.tell("worker", "print alive") == ""
    assert open_files() == before


async def test_daemon_never_signals_itself(launcher: ProcessLauncher) -> None:
    own = read_stat(os.getpid())
    assert own is not None
    for pid in {os.getpid(), os.getsid(0)} - {0}:
        stat = read_stat(pid)
        if stat is not None:
            handle = ProcessHandle(boot_id=launcher.boot_id, pid=pid, start_ticks=stat.start_ticks)
            assert await launcher.members(handle) == frozenset()
            await launcher.terminate(handle, kill=True)


REUSE = """
import asyncio, os, sys
from concurrent.futures import ThreadPoolExecutor
from adapters.launchers.groups import GroupMemory, find_members
from adapters.launchers.process import ProcessLauncher
from scheduler.ports.launcher import SpawnRequest

async def start(launcher, number, *argv):
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(number - 1))
    request = SpawnRequest(argv=argv, env={"PATH": "/usr/bin:/bin"}, cwd="/", log_path=sys.argv[1] + "/log", token=f"u:{number}{argv[-1]}")
    gate = await launcher.spawn(request)
    await gate.release()
    assert gate.handle.pid == number, gate.handle
    return gate.handle

async def main():
    # Threads take numbers, too: let there be no new ones.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    await asyncio.to_thread(int)
    launcher = ProcessLauncher()
    old = await start(launcher, 3000, "sleep", "100")
    await launcher.terminate(old, kill=True)
    assert (await launcher.wait_leader(old)).signal == 9
    assert not await launcher.members(old)

    new = await start(launcher, 3000, "sleep", "200")
    assert old != new
    fresh = ProcessLauncher()
    for each in (launcher, fresh):
        assert not await each.leader_alive(old)
        assert not await each.members(old)
        await each.wait_leader(old)
        await each.terminate(old, kill=True)
        assert await each.leader_alive(new)
        assert await each.members(new) == {3000}
    await launcher.terminate(new, kill=True)
    await launcher.wait_leader(new)

    # The number belongs to a session whose leader has ended as well.
    last = await start(launcher, 3000, "sh", "-c", "sleep 300 & exit 0")
    await launcher.wait_leader(last)
    assert not await launcher.members(old)
    await launcher.terminate(old, kill=True)
    left = await launcher.members(last)
    assert len(left) == 1, left
    await launcher.terminate(last, kill=True)
    print("done")

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="choosing process ids needs root and a PID namespace of its own")
async def test_reused_number_is_another_process(tmp_path: Path) -> None:
    inside = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", REUSE, str(tmp_path))
    run = await asyncio.create_subprocess_exec(*inside, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = await run.communicate()
    if b"unshare failed" in err:
        pytest.skip(err.decode())
    assert (out, err.decode()) == (b"done\n", "")


# --- ports --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1"])
async def test_port_of_a_member_is_ours(launcher: ProcessLauncher, hub: Hub, tmp_path: Path, address: str) -> None:
    if ":" in address and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    handle = await start(launcher, hub.argv("fork", "worker", "serve", "engine"), tmp_path)
    port = int(await hub.tell("worker", f"listen {address} {launcher.free_port()}"))
    assert await launcher.owns_port(handle, port) is True
    other = await start(launcher, hub.argv("serve", "other"), tmp_path, launch="2")
    assert await launcher.owns_port(other, port) is False


async def test_port_of_a_stranger_or_of_nobody_is_not_ours(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    handle = await start(launcher, hub.argv("serve", "engine"), tmp_path)
    port = launcher.free_port()
    assert await launcher.owns_port(handle, port) is False
    with socket.create_server(("127.0.0.1", port), reuse_port=True):
        assert await launcher.owns_port(handle, port) is False
        # The engine listens on all addresses, but a connection to loopback reaches the stranger.
        await hub.tell("engine", f"listen :: {port}")
        assert await launcher.owns_port(handle, port) is False
        # Both on the same address: some connections reach the engine, some the stranger.
        await hub.tell("engine", f"listen 127.0.0.1 {port}")
        assert await launcher.owns_port(handle, port) is False
    assert await launcher.owns_port(handle, port) is True


def test_free_ports_are_free_distinct_and_not_for_outgoing_connections(launcher: ProcessLauncher) -> None:
    ports = [launcher.free_port() for _ in range(300)]
    assert len(set(ports)) == len(ports)
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert lowest < 21000 or all(port < lowest for port in ports)
    following = launcher.free_port() + 1
    with socket.create_server(("127.0.0.1", following)):
        assert launcher.free_port() != following


# --- owned --------------------------------------------------------------------------------------------------------------


async def test_owned_finds_launches_of_this_state_directory_only(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    uuid = f"{UUID}-{tmp_path.name}"
    first = await start(launcher, hub.argv("fork", "worker", "serve", "engine"), tmp_path, launch="1")
    second = await start(launcher, hub.argv("daemonise", "escapee", "serve", "other"), tmp_path, launch="2")
    foreign = SpawnRequest(argv=hub.argv("serve", "foreign"), env={}, cwd="/", log_path=str(tmp_path / "foreign.log"), token=f"{uuid}0:1")
    gate = await launcher.spawn(foreign)
    await gate.release()
    for name in ("worker", "engine", "escapee", "other", "foreign"):
        await hub.pid(name)
    escapee = await hub.pid("escapee")
    found = {(owned.handle.pid, owned.token) for owned in await ProcessLauncher().owned(uuid)}
    assert found == {(first.pid, f"{uuid}:1"), (second.pid, f"{uuid}:2"), (escapee, f"{uuid}:2")}
    # With the leaders dead the carriers are named, and their handles reach the whole launch.
    for name in ("engine", "other"):
        with pytest.raises(ConnectionError):
            await hub.tell(name, "exit 0")
    await asyncio.gather(launcher.wait_leader(first), launcher.wait_leader(second))
    fresh = ProcessLauncher()
    left = await fresh.owned(uuid)
    assert {owned.handle.pid for owned in left} == {await hub.pid("worker"), escapee}
    for owned in left:
        assert await fresh.members(owned.handle) == {owned.handle.pid}
        await fresh.terminate(owned.handle, kill=True)
    await asyncio.gather(end_of(await hub.pid("worker")), end_of(escapee))
    assert await ProcessLauncher().owned(uuid) == []


# --- out of memory ------------------------------------------------------------------------------------------------------

MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")


@pytest.mark.skipif(
    not os.access(MEMORY_GROUPS / "memory.limit_in_bytes", os.W_OK), reason="needs root and memory control groups of version 1"
)
async def test_engine_killed_for_want_of_memory_is_told_apart(launcher: ProcessLauncher, hub: Hub, tmp_path: Path) -> None:
    group = MEMORY_GROUPS / f"hotseat-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(64 << 20))
        other = await start(launcher, hub.argv("serve", "other"), tmp_path, launch="2")
        gate = await launcher.spawn(request_for(hub.argv("serve", "engine"), tmp_path))
        (group / "cgroup.procs").write_text(str(gate.handle.pid))
        await gate.release()
        with pytest.raises(ConnectionError):
            await hub.tell("engine", "touch 256")
        assert await launcher.wait_leader(gate.handle) == ExitInfo(signal=signal.SIGKILL, oom_killed=True)
        os.kill(await hub.pid("other"), signal.SIGKILL)
        assert await launcher.wait_leader(other) == ExitInfo(signal=signal.SIGKILL, oom_killed=False)
    finally:
        await asyncio.to_thread(group.rmdir)


def test_launcher_and_gate_satisfy_their_ports(launcher: ProcessLauncher) -> None:
    port: Launcher = launcher
    assert port.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert ProcessGate.release.__doc__
