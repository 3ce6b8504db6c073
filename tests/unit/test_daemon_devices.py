"""What the daemon makes of the configuration's words about devices, host memory and turns, and how it says hello."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from scheduler.config.settings import DeclaredDevice, DeviceOverride, GatewaySettings, Loaded, Settings
from scheduler.daemon import compose
from scheduler.daemon.clock import SystemClock
from scheduler.daemon.main import hello
from scheduler.daemon.overrides import Overridden
from scheduler.domain.device import DeviceInfo, DeviceSample, Pin
from scheduler.domain.errors import Permanent
from scheduler.domain.ids import DeviceId, Holder
from scheduler.domain.units import GIB
from scheduler.version import VERSION


def info(name: str, kind: str = "nvidia", parent: str | None = None, why_not: str = "") -> DeviceInfo:
    return DeviceInfo(
        id=DeviceId(name),
        kind=kind,
        name=name,
        index=0,
        uuid=name,
        capacity_bytes=80 * GIB,
        parent=None if parent is None else DeviceId(parent),
        allocatable=not why_not,
        why_not=why_not,
    )


class Family:
    """A family of devices that says what it was told."""

    kind = "nvidia"
    generation = 7

    def __init__(self, *infos: DeviceInfo) -> None:
        self.infos = infos
        self.known: Mapping[str, DeviceId] = {}
        self.sampled: list[tuple[object, object]] = []

    async def inventory(self, known: Mapping[str, DeviceId]) -> Sequence[DeviceInfo]:
        self.known = known
        return self.infos

    async def sample(
        self, groups: Mapping[DeviceId, Mapping[Holder, frozenset[int]]], moving: frozenset[Holder] = frozenset()
    ) -> Sequence[DeviceSample]:
        self.sampled.append((groups, moving))
        return [DeviceSample(device=self.infos[0].id, started_at_s=1.0, used_bytes=2, free_bytes=3)]

    def pins(self) -> Mapping[DeviceId, Pin]:
        return {self.infos[0].id: Pin(index=4, uuid="u")}


def settings(**overrides: DeviceOverride) -> Settings:
    return Settings(state_dir=Path("/x"), overrides={DeviceId(name): override for name, override in overrides.items()})


async def test_a_device_that_is_not_to_be_used_is_watched_with_its_parts() -> None:
    family = Family(info("gpu0"), info("gpu1"), info("gpu1m0", parent="gpu1"), info("gpu2", why_not="MIG is on"))
    unused = DeviceOverride(use=False)
    source = Overridden(family, settings(gpu1=unused, gpu2=unused, gpu0=DeviceOverride(headroom=None)))
    found = await source.inventory({"u": DeviceId("gpu9")})
    why = "devices.override says use: false"
    assert [(each.id, each.allocatable, each.why_not) for each in found] == [
        ("gpu0", True, ""),
        ("gpu1", False, why),
        ("gpu1m0", False, why),
        ("gpu2", False, "MIG is on"),  # what the device itself says is the better reason
    ]
    assert family.known == {"u": "gpu9"}


async def test_everything_else_is_the_familys_own() -> None:
    family = Family(info("gpu0"))
    source = Overridden(family, settings(gpu0=DeviceOverride(use=False)))
    assert (source.kind, source.generation, source.pins()) == ("nvidia", 7, {"gpu0": Pin(index=4, uuid="u")})
    assert [sample.used_bytes for sample in await source.sample({}, frozenset({Holder("h")}))] == [2]
    assert family.sampled == [({}, frozenset({Holder("h")}))]


@pytest.mark.parametrize(
    ("discover", "declared", "kinds"),
    [(("nvidia",), True, ["cpu", "nvidia"]), (("nvidia",), False, ["nvidia"]), ((), True, ["cpu"]), ((), False, [])],
)
def test_families_of_the_configuration(discover: tuple[str, ...], declared: bool, kinds: list[str]) -> None:
    cpu = DeclaredDevice(id=DeviceId("cpu0"), kind="cpu", memory_bytes=GIB, headroom_bytes=0)
    loaded = Loaded(path=None, settings=Settings(state_dir=Path("/x"), discover=discover), devices=(cpu,) if declared else ())
    assert [source.kind for source in compose.device_sources(loaded, SystemClock())] == kinds


def test_host_memory_for_sleepers(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Settings(state_dir=Path("/x"), host_sleep_bytes=0)
    monkeypatch.setattr(compose, "host_memory", lambda: (64 * GIB, 40 * GIB))
    assert compose.host_limit_bytes(said) == 0
    assert compose.host_limit_bytes(settings()) == 20 * GIB
    monkeypatch.setattr(compose, "host_memory", lambda: None)
    assert compose.host_limit_bytes(said) == 0
    with pytest.raises(Permanent, match="how much memory") as caught:
        compose.host_limit_bytes(settings())
    assert "sleep_memory" in caught.value.fix


@pytest.mark.parametrize(("word", "cuts"), [("never", False), ("after_max_wait", True)])
def test_what_decisions_are_told_of_turns(word: str, cuts: bool) -> None:
    policy = compose.policy_of(Settings(state_dir=Path("/x"), gateway=GatewaySettings(turn_factor=2.5, interrupt=word)))
    assert (policy.turn_factor, policy.interrupt) == (2.5, cuts)


@pytest.mark.parametrize(
    ("devices", "models", "line"),
    [
        ([info(f"gpu{i}") for i in range(4)], ["a"], "4 GPUs, 320.0 GiB, 1 model, http://x"),
        ([info("gpu0"), info("cpu0", "cpu")], ["a", "b"], "1 GPU and 1 other device, 160.0 GiB, 2 models, http://x"),
        ([info("cpu0", "cpu"), info("cpu1", "cpu"), info("gpu0", why_not="x")], ["a"], "2 devices, 160.0 GiB, 1 model, http://x"),
    ],
)
def test_hello_counts_seats(devices: list[DeviceInfo], models: list[str], line: str) -> None:
    first, second = hello(devices, models, ["http://x"]).splitlines()
    assert first == f"hotseat {VERSION}: {line}"
    assert second == """Try: curl http://x/v1/chat/completions -d '{"model": "a", "messages": [{"role": "user", "content": "hi"}]}'"""


def test_hello_with_nothing_says_what_to_do() -> None:
    line = hello([], [], ["http://x"])
    assert line.startswith(f"hotseat {VERSION}: 0 devices, 0.0 GiB, 0 models, http://x. No seats: hotseat doctor")
    assert "describe a model in hotseat.yaml" in line
