"""What the supervisor concludes from its looks: after a lost request, before an engine counts as ready, and at the end of its group."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from scheduler.domain.claims import Footprint, Source
from scheduler.domain.ids import InstanceId, LaunchId
from scheduler.domain.launch import LaunchRecord
from scheduler.domain.model import ModelSpec
from scheduler.domain.reasons import Code, Reason
from scheduler.orchestrator.effects import CheckNow, Find, Stop, Wake
from scheduler.orchestrator.events import (
    EngineExited,
    EngineReady,
    EngineRefused,
    EngineSlow,
    Found,
    GroupEmpty,
    Happening,
    StartProgressed,
    WakeSent,
)
from scheduler.orchestrator.parts import Parts
from scheduler.orchestrator.rounds import HEALTH_EVERY_S
from scheduler.orchestrator.supervisor import Supervisor
from scheduler.ports.engine import Answer, Endpoint, Probe
from scheduler.ports.launcher import ExitInfo, Owned, ProcessHandle
from scheduler.simulator.virtual_time import VirtualClock, elapse

pytestmark = pytest.mark.virtual_time
IID = InstanceId("a#0")
BROKEN, READY, REFUSED, SILENT, STARTING = Answer.BROKEN, Answer.READY, Answer.REFUSED, Answer.SILENT, Answer.STARTING


class Scripted:
    """An engine that can be woken, and then answers probes as it was told; the last answer stays."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.probes = 0

    async def sleep(self, endpoint: Endpoint, level: int, timeout_s: float) -> int:
        raise AssertionError("nobody asked for that")

    async def wake(self, endpoint: Endpoint, level: int, timeout_s: float) -> None:
        """At once."""

    def explain_exit(self, ended: ExitInfo, tail: Sequence[str]) -> Reason:
        return Reason(Code.CRASHED)

    async def probe(self, endpoint: Endpoint, timeout_s: float) -> Probe:
        self.probes += 1
        return Probe(answer=self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])


def record() -> LaunchRecord:
    nothing: dict[str, Any] = dict.fromkeys(
        ("env_hash", "cwd", "token", "fingerprint", "served_model", "ready_path", "log_path", "boot_id"), ""
    )
    empty: dict[str, Any] = dict.fromkeys(("argv", "env", "devices", "sleep_paths", "wake_paths"), ())
    footprint = Footprint(awake_bytes=1)
    return LaunchRecord(
        id=LaunchId(1), instance=IID, engine="x", port=1, kv_bytes=None, footprint=footprint, created_at=0.0, **nothing, **empty
    )


class Ports:
    """A launcher whose engine does not end, and holds its port or not; the last answer stays."""

    def __init__(self, *owned: bool) -> None:
        self.ours = list(owned)
        self.active = [0]

    async def owns_port(self, handle: ProcessHandle, port: int) -> bool:
        return self.ours.pop(0) if len(self.ours) > 1 else self.ours[0]

    async def activity(self, handle: ProcessHandle, log_path: str) -> int:
        return self.active.pop(0) if len(self.active) > 1 else self.active[0]

    async def wait_leader(self, handle: ProcessHandle) -> ExitInfo:
        await asyncio.Event().wait()
        raise AssertionError("it does not end")


def parts_of(clock: VirtualClock, engine: Scripted, launcher: Ports | None = None) -> Parts:
    return Parts(
        engines=cast(Any, {"x": engine}),
        launcher=cast(Any, launcher),
        sources=(),
        clock=clock,
        database=cast(Any, None),
        writer=cast(Any, None),
        state_uuid="",
        log_dir=Path(),
        environment=lambda _spec, added, _values: added,
    )


async def after_a_lost_request(clock: VirtualClock, engine: Scripted, seconds: float = 2.0) -> list[Happening]:
    """What the supervisor says within ``seconds``."""
    said: list[Happening] = []
    supervisor = Supervisor(IID, parts_of(clock, engine), said.append)
    supervisor.adopt(record())
    await supervisor.carry_out(Wake(instance=IID, launch=LaunchId(1), seq=1, level=1, timeout_s=1.0))
    assert [type(event) for event in said] == [WakeSent, EngineReady]
    said.clear()
    await asyncio.sleep(0)
    await supervisor.carry_out(CheckNow(instance=IID, launch=LaunchId(1), seq=1))
    await elapse(seconds)
    await supervisor.close()
    return said


@pytest.mark.parametrize(
    ("answers", "cleared"),
    [
        ([READY], True),
        ([BROKEN, READY], True),
        ([BROKEN, BROKEN], True),  # it breaks connections, but lives: its requests may tell more
        ([REFUSED, READY], True),
        ([BROKEN, REFUSED, REFUSED], False),  # it was on its way out
        ([REFUSED, REFUSED], False),
        ([SILENT], False),
    ],
)
async def test_only_what_answers_is_cleared(virtual_clock: VirtualClock, answers: list[Answer], cleared: bool) -> None:
    said = await after_a_lost_request(virtual_clock, Scripted(*answers))
    assert [event.slow for event in said if isinstance(event, EngineSlow)] == ([False] if cleared else [True] if SILENT in answers else [])
    assert any(isinstance(event, EngineRefused) for event in said) == (answers.count(REFUSED) > 1)


async def test_one_broken_look_says_nothing_yet(virtual_clock: VirtualClock) -> None:
    engine = Scripted(BROKEN, READY)
    assert await after_a_lost_request(virtual_clock, engine, seconds=0.05) == []
    assert engine.probes == 1


async def test_a_healthy_engine_is_looked_at_now_and_then_and_nothing_is_said(virtual_clock: VirtualClock) -> None:
    engine = Scripted(READY)
    said = await after_a_lost_request(virtual_clock, engine, seconds=10 * HEALTH_EVERY_S + 1)
    assert engine.probes == 11
    assert len(said) == 1


class Theirs(Scripted):
    """Somebody else's engine. Awake once it was woken."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__(*answers)
        self.woken = 0

    def port(self, spec: ModelSpec) -> int:
        raise AssertionError("it was taken in already")

    async def wake(self, endpoint: Endpoint, level: int, timeout_s: float) -> None:
        self.woken += 1
        self.answers = [READY]


# --- is it our engine that answers? ---------------------------------------------------------------------------------


async def until_ready(clock: VirtualClock, answers: list[Answer], owned: list[bool], active: tuple[int, ...] = (0,)) -> list[Happening]:
    """What the supervisor says of an engine that was being started when its daemon died; the first look finds it at it."""
    said: list[Happening] = []
    ports = Ports(True, *owned)
    ports.active = list(active)
    supervisor = Supervisor(IID, parts_of(clock, Scripted(STARTING, *answers), ports), said.append)
    supervisor.adopt(replace(record(), pid=2, start_ticks=3))
    finding = asyncio.create_task(supervisor.carry_out(Find(instance=IID, launch=LaunchId(1), seq=1, started_before=True)))
    await elapse(30.0)
    await supervisor.close()
    await asyncio.wait([finding])
    assert isinstance(said[0], Found)
    return said[1:]


@pytest.mark.parametrize("answer", [READY, STARTING, BROKEN])
async def test_a_stranger_goes_on_answering(virtual_clock: VirtualClock, answer: Answer) -> None:
    [ended] = await until_ready(virtual_clock, [answer], [False])
    assert isinstance(ended, EngineExited)
    assert ended.reason.code is Code.PORT_TAKEN


@pytest.mark.parametrize("answer", [READY, Answer.ASLEEP])
async def test_a_stranger_on_the_port_of_an_adopted_engine_is_not_taken_for_it(virtual_clock: VirtualClock, answer: Answer) -> None:
    """It answers as ours would; only who holds the port tells them apart."""
    said: list[Happening] = []
    ports = Ports(False)
    supervisor = Supervisor(IID, parts_of(virtual_clock, Theirs(answer), ports), said.append)
    supervisor.adopt(replace(record(), pid=2, start_ticks=3))
    finding = asyncio.create_task(supervisor.carry_out(Find(instance=IID, launch=LaunchId(1), seq=1, started_before=False)))
    await elapse(20.0)
    assert said == []
    ports.ours = [True]
    await elapse(2.0)
    await supervisor.close()
    await asyncio.wait([finding])
    assert [type(event) for event in said] == [Found]


@pytest.mark.parametrize("answer", [READY, STARTING, BROKEN])
async def test_an_engine_that_ends_between_two_looks_is_no_stranger(virtual_clock: VirtualClock, answer: Answer) -> None:
    """Its last answer came, then nobody listened: how it ended is told by its exit, and it is not called ready."""
    assert await until_ready(virtual_clock, [answer, REFUSED], [False]) == []


async def test_a_start_that_writes_or_reads_is_said_to_progress(virtual_clock: VirtualClock) -> None:
    """What was there at the first look is none; a log that was cut is none either."""
    said = await until_ready(virtual_clock, [STARTING], [True], active=(7, 7, 9, 2, 3))
    assert [(type(event), round(event.at_s)) for event in said] == [(StartProgressed, 10), (StartProgressed, 20)]


async def test_an_engine_of_ours_is_ready_when_it_says_so(virtual_clock: VirtualClock) -> None:
    said = await until_ready(virtual_clock, [REFUSED, STARTING, READY], [True])
    assert [type(event) for event in said] == [EngineReady]


@pytest.mark.parametrize("source", [Source.ESTIMATED, Source.DECLARED, Source.MEASURED])
async def test_a_sleeper_of_somebody_else_is_woken_when_it_is_known_what_it_takes(virtual_clock: VirtualClock, source: Source) -> None:
    said: list[Happening] = []
    engine = Theirs(STARTING, Answer.ASLEEP)
    supervisor = Supervisor(IID, parts_of(virtual_clock, engine, Ports(True)), said.append)
    supervisor.adopt(replace(record(), pid=2, start_ticks=3, footprint=Footprint(awake_bytes=1, source=source)))
    finding = asyncio.create_task(supervisor.carry_out(Find(instance=IID, launch=LaunchId(1), seq=1, started_before=True)))
    await elapse(10.0)
    await supervisor.close()
    await asyncio.wait([finding])
    known = source is not Source.ESTIMATED
    assert engine.woken == known
    assert any(isinstance(event, EngineReady) for event in said) == known
    assert [event.reason.code for event in said if isinstance(event, EngineExited)] == ([] if known else [Code.ENGINE_LOST])


# --- the end of a group -------------------------------------------------------------------------------------------------


class Left(Ports):
    """The leader ended while no daemon looked, and its session with it; one that had left that session carries the token on."""

    def __init__(self) -> None:
        super().__init__(False)
        self.stray = ProcessHandle(boot_id="", pid=7, start_ticks=8)
        self.ended: list[ProcessHandle] = []

    async def wait_leader(self, handle: ProcessHandle) -> ExitInfo:
        return ExitInfo()

    async def members(self, handle: ProcessHandle) -> frozenset[int]:
        return frozenset()

    async def terminate(self, handle: ProcessHandle, *, kill: bool) -> None:
        self.ended.append(handle)

    async def owned(self, state_uuid: str) -> list[Owned]:
        others = Owned(handle=ProcessHandle(boot_id="", pid=9, start_ticks=9), token="u:2")
        return [others] if self.stray in self.ended else [others, Owned(handle=self.stray, token="u:1")]


async def test_what_left_its_leaders_session_is_ended_by_its_token_before_the_group_is_called_empty(virtual_clock: VirtualClock) -> None:
    said: list[Happening] = []
    launcher = Left()
    supervisor = Supervisor(IID, parts_of(virtual_clock, Scripted(REFUSED), launcher), said.append)
    supervisor.adopt(replace(record(), pid=2, start_ticks=3, token="u:1"))
    await supervisor.carry_out(Stop(instance=IID, launch=LaunchId(1), seq=1, kill=False))
    await supervisor.close()
    assert [event for event in said if isinstance(event, GroupEmpty)]
    assert [handle.pid for handle in launcher.ended] == [2, 7], "the group, what it left behind, and nobody else"
