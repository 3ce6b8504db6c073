"""Where a model may sit is not for ever: a sleeper whose device became too small for it is started on another one."""

from dataclasses import replace
from typing import Any

from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.units import GIB
from tests.support.behaviour import Behaviour
from tests.support.plain import Plain

A = Behaviour(awake_bytes=16 * GIB)
SLOW = Behaviour(awake_bytes=2 * GIB, start_s=60.0)


def asleep(devices: dict[str, float], **models: Any) -> Plain:
    """``a`` sleeps on gpu0."""
    world = Plain(devices, a=A, **models)
    world.ask("a")
    world.run(60)
    assert world.instance("a").devices == ("gpu0",)
    world.order("sleep", "a")
    world.run(60)
    assert world.phase("a") == "asleep"
    return world


def restart_with(world: Plain, **gib: float) -> None:
    """A new daemon finds devices of another size: a budget was lowered, or another process group owns a part."""
    sizes = {DeviceId(name): int(size * GIB) for name, size in gib.items()}
    world.infos = [replace(i, capacity_bytes=sizes.get(i.id, i.capacity_bytes)) for i in world.infos]
    world.restart()
    world.run(30)


def test_a_sleeper_whose_device_became_too_small_starts_on_another() -> None:
    world = asleep({"gpu0": 40, "gpu1": 24})
    restart_with(world, gpu0=8)
    assert world.phase("a") == "asleep", "nobody wants it"
    (client,) = world.ask("a")
    world.run(120)
    assert client.end == "ok"
    assert world.instance("a").devices == ("gpu1",)
    assert world.path("a").endswith("asleep stopping stopped launching awake")


def test_without_another_device_it_is_refused_and_left_alone() -> None:
    world = asleep({"gpu0": 40})
    restart_with(world, gpu0=8)
    (client,) = world.ask("a")
    world.run(60)
    assert client.end == "does_not_fit"
    assert world.phase("a") == "asleep"


def test_it_is_not_stopped_beside_a_start_and_its_waiters_stay_held() -> None:
    world = asleep({"gpu0": 40, "gpu1": 24}, b=SLOW)
    world.configure(b={"devices": replace(world.specs["b"].devices, ids=(DeviceId("gpu0"),))})
    restart_with(world, gpu0=8)
    world.ask("b")
    world.run(5)
    assert world.phase("b") == "launching"
    (client,) = world.ask("a", wait_s=300.0)
    world.run(5)
    assert (client.end, world.phase("a")) == ("held", "asleep")
    world.run(200)
    assert client.end == "ok"


def test_a_model_that_is_always_awake_comes_back_by_itself() -> None:
    world = asleep({"gpu0": 40, "gpu1": 24})
    restart_with(world, gpu0=8)
    world.configure(a={"always_awake": True})
    world.run(120)
    assert world.phase("a") == "awake"
    assert world.instance("a").devices == ("gpu1",)


def crowd(world: Plain, gib: float = 20.0) -> None:
    """Others take memory on gpu0."""
    world.foreign[DeviceId("gpu0")] = int(gib * GIB)


def test_a_sleeper_beside_strangers_starts_on_a_device_with_room() -> None:
    world = asleep({"gpu0": 24, "gpu1": 24})
    crowd(world)
    world.run(10)
    (client,) = world.ask("a")
    world.run(4)
    assert (client.end, world.phase("a")) == ("held", "asleep"), "the stranger may be leaving"
    world.run(60)
    assert client.end == "ok"
    assert world.instance("a").devices == ("gpu1",)
    assert world.path("a").endswith("asleep stopping stopped launching awake")
    told = [t.message for t in world.told if "it is stopped, and starts on gpu1 instead" in t.message]
    assert len(told) == 1
    assert "are used by others" in told[0]


def test_a_stranger_that_leaves_at_once_costs_no_cold_start() -> None:
    world = asleep({"gpu0": 24, "gpu1": 24})
    crowd(world)
    world.run(10)
    (client,) = world.ask("a")
    world.run(3)
    crowd(world, 0)
    world.run(30)
    assert client.end == "ok"
    assert world.instance("a").devices == ("gpu0",)
    assert world.path("a").endswith("asleep waking awake")


def test_an_idle_model_leaves_its_device_for_a_sleeper_beside_strangers() -> None:
    world = asleep({"gpu0": 24, "gpu1": 24}, b=A)
    world.configure(b={"devices": replace(world.specs["b"].devices, ids=(DeviceId("gpu1"),))})
    world.ask("b")
    world.run(60)
    crowd(world)
    world.run(10)
    (client,) = world.ask("a")
    world.run(120)
    assert client.end == "ok"
    assert (world.phase("b"), world.instance("a").devices) == ("asleep", ("gpu1",))


def test_without_room_elsewhere_a_sleeper_beside_strangers_stays_a_sleeper() -> None:
    """Where everything is in use it would wait there too, and have lost the seconds that its sleep saves."""
    world = asleep({"gpu0": 24, "gpu1": 24}, b=A)
    world.configure(b={"devices": replace(world.specs["b"].devices, ids=(DeviceId("gpu1"),))})
    world.ask("b", for_s=300.0)
    world.run(60)
    crowd(world)
    world.run(10)
    world.ask("a", wait_s=200.0)
    world.run(60)
    assert world.phase("a") == "asleep"


def test_a_sleeper_beside_strangers_is_left_alone_while_its_device_does_not_answer() -> None:
    """What its stop gives back would be seen by nobody."""
    world = asleep({"gpu0": 24, "gpu1": 24})
    crowd(world)
    world.run(10)
    world.unreadable.add(DeviceId("gpu0"))
    world.ask("a")
    world.run(60)
    assert world.phase("a") == "asleep"


def test_a_model_that_is_always_awake_leaves_strangers_by_itself_in_its_own_time() -> None:
    world = Plain({"gpu0": 24, "gpu1": 24}, a=A)
    world.ask("a")
    world.run(60)
    world.order("sleep", "a")
    world.run(10)
    crowd(world)
    world.run(5)
    world.configure(a={"always_awake": True})
    world.run(20)
    assert world.phase("a") == "asleep", "nobody waits for it, and a wake is cheaper than a start"
    world.run(120)
    assert (world.phase("a"), world.instance("a").devices) == ("awake", ("gpu1",))


def test_an_attached_sleeper_beside_strangers_is_not_ours_to_stop() -> None:
    world = Plain({"gpu0": 24, "gpu1": 24}, a=A)
    world.play(replace(world.registry(), attached=frozenset({ModelName("a")})))
    world.ask("a")
    world.run(60)
    world.order("sleep", "a")
    world.run(60)
    crowd(world)
    world.run(10)
    world.ask("a")
    world.run(60)
    assert (world.phase("a"), "Stop" in {what for _, what, _ in world.did}) == ("asleep", False)
