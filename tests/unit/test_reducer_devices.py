"""Devices that fall ill, get lost, vanish and come back, with instances in every phase on them."""

from scheduler.domain.device import Health
from scheduler.domain.ids import DeviceId
from scheduler.domain.model import DeviceWish
from scheduler.domain.units import GIB
from tests.support.behaviour import Behaviour
from tests.support.plain import Plain

SMALL = Behaviour(awake_bytes=6 * GIB)


def test_all_who_sit_on_a_faulty_device_leave_it_one_after_the_other_and_the_idle_ones_first() -> None:
    world = Plain({"gpu0": 24, "gpu1": 24}, a=SMALL, b=SMALL, c=SMALL)
    world.configure(**{m: {"devices": DeviceWish(ids=(DeviceId("gpu0"),))} for m in "abc"})
    for model in "abc":
        world.ask(model)
        world.run(10)
    world.order("sleep", "a")
    world.run(5)
    world.ask("b", for_s=300)
    world.run(1)
    world.ail("gpu0", Health.DRAINING)
    world.run(60)
    assert {m: world.phase(m) for m in "abc"} == {"a": "stopped", "b": "draining", "c": "stopped"}
    world.settle()
    assert (world.phase("b"), world.ends("b")) == ("stopped", ["ok", "ok"])
