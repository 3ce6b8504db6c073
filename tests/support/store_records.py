"""Records for tests of the store: one of each by hand, and any of them by hypothesis."""

import dataclasses
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from scheduler.domain.claims import Footprint, Source, even_claim
from scheduler.domain.ids import CauseId, DeviceId, InstanceId, LaunchId, ModelName, MoveId
from scheduler.domain.instance import GOAL_AWAKE, Failures, Instance, Phase, Transition, goal_asleep
from scheduler.domain.launch import LaunchRecord
from scheduler.domain.learned import Learned
from scheduler.domain.model import DeclaredFootprint, DeviceWish, HttpStep, ModelSpec
from scheduler.domain.plan import Move, Step, StepKind
from scheduler.domain.reasons import Code, Reason

GIB = 1 << 30
A = ModelName("org/a")
A0 = InstanceId("org/a#0")
CPU0 = DeviceId("cpu0")
BOOT = "boot-1"


class StillClock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self, wall: float = 1_800_000_000.0) -> None:
        self.wall_s = wall
        self.monotonic_s = 0.0

    def monotonic(self) -> float:
        return self.monotonic_s

    def wall(self) -> float:
        return self.wall_s


def model(name: str = A, **changes: Any) -> ModelSpec:
    return ModelSpec(
        name=ModelName(name),
        engine="llamacpp",
        engine_args=("--threads", "2"),
        model="/srv/models/a.gguf",
        aliases=("a", "default"),
        env=(("LANG", "C.UTF-8"),),
        sleep_steps=(HttpStep(path="/sleep?level=1", timeout_s=60.0),),
        devices=DeviceWish(kind="cpu", count=1, ids=(CPU0,), min_memory_bytes=GIB),
        footprint=DeclaredFootprint(weights_bytes=GIB),
        levels=(1, 2),
        max_wait_s=120.0,
        source="file:hotseat.yaml:12",
        **changes,
    )


def footprint() -> Footprint:
    return Footprint(
        awake_bytes=3 * GIB,
        start_peak_bytes=4 * GIB,
        residue_bytes={1: GIB, 2: GIB // 2},
        host_bytes={1: 2 * GIB},
        wake_s={1: 0.8},
        start_s=12.5,
        weights_bytes=2 * GIB,
        source=Source.MEASURED,
    )


def learned(fingerprint: str = "f00d") -> Learned:
    return Learned(fingerprint=fingerprint).with_start(3.5).with_run(3 * GIB, 4 * GIB).with_sleep(1, 1.2, GIB).with_wake(1, 0.8)


def launch(number: int = 1, instance: str = A0, **changes: Any) -> LaunchRecord:
    record = LaunchRecord(
        id=LaunchId(number),
        instance=InstanceId(instance),
        engine="llamacpp",
        argv=("llama-server", "--model", "/srv/models/a.gguf"),
        env=(("LLAMA_ARG_NO_WARMUP", "1"),),
        env_hash="e1",
        cwd="/",
        devices=(CPU0,),
        port=40001,
        kv_bytes=None,
        footprint=footprint(),
        token=f"uuid:{number}",
        fingerprint="f00d",
        served_model="a",
        ready_path="/health",
        sleep_paths=(("/sleep?level=1", 60.0),),
        wake_paths=(),
        log_path="/var/lib/hotseat/logs/a.log",
        boot_id=BOOT,
        created_at=1_800_000_000.0,
    )
    return dataclasses.replace(record, **changes)


def instance(name: str = A0, **changes: Any) -> Instance:
    row = Instance(
        id=InstanceId(name),
        phase=Phase.ASLEEP,
        level=1,
        goal=goal_asleep(1),
        devices=(CPU0,),
        claim=even_claim([CPU0], GIB, 2 * GIB),
        since_s=100.5,
        deadline_s=160.5,
        failures=Failures(launch=1),
        cause=CauseId("hold:7"),
        reason=Reason(Code.EVICTED, "evicted for b", "wake it again", "n/a"),
    )
    return dataclasses.replace(row, **changes)


def transition(seq: int = 1, name: str = A0, **changes: Any) -> Transition:
    line = Transition(
        seq=seq,
        at=1_800_000_000.0 + seq,
        instance=InstanceId(name),
        source=Phase.FALLING_ASLEEP,
        target=Phase.ASLEEP,
        event="SleepConfirmed",
        cause=CauseId("hold:7"),
        reason=Reason(Code.EVICTED, "evicted for b"),
    )
    return dataclasses.replace(line, **changes)


def move(number: int = 1, **changes: Any) -> Move:
    steps = (
        Step(instance=InstanceId("b#0"), goal=goal_asleep(1), kind=StepKind.SHRINK),
        Step(instance=A0, goal=GOAL_AWAKE, kind=StepKind.GROW, devices=(CPU0,)),
    )
    whole = Move(
        id=MoveId(number),
        devices=frozenset({CPU0, DeviceId("cpu1")}),
        steps=steps,
        cause=CauseId("hold:7"),
        created_s=99.0,
        beneficiary=A,
        reason=Reason(Code.REQUESTED, "requested by 2"),
    )
    return dataclasses.replace(whole, **changes)


# --- any record -----------------------------------------------------------------------------------------------------

_SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=12),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
}
#: Ids with a grammar of their own.
_NAMES: dict[Any, st.SearchStrategy[Any]] = {InstanceId: st.integers(0, 99).map(lambda n: InstanceId(f"m{n % 7}#{n}"))}


def any_of(hint: Any, **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Any value of a type made of dataclasses, enums, containers and scalars; ``fixed`` sets fields of the outermost one."""
    if hint in _NAMES:
        return _NAMES[hint]
    if isinstance(hint, NewType):
        return any_of(hint.__supertype__)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return st.one_of(*(st.none() if item is type(None) else any_of(item) for item in inner))
    if origin is tuple:
        return st.lists(any_of(inner[0]), max_size=3).map(tuple) if inner[-1] is Ellipsis else st.tuples(*map(any_of, inner))
    if origin is frozenset:
        return st.frozensets(any_of(inner[0]), max_size=3)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(any_of(inner[0]), any_of(inner[1]), max_size=3)
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        names = [f.name for f in dataclasses.fields(hint)]
        return st.builds(hint, **{name: fixed[name] if name in fixed else any_of(hints[name]) for name in names})  # type: ignore[arg-type]
    if issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    return _SCALARS[hint]
