"""Every launch that was ended for a failure says so in its record."""

from pathlib import Path

from scheduler.domain.ids import instance_id
from scheduler.domain.instance import Phase
from scheduler.domain.launch import LaunchEnd
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.simulator.virtual_time import run_virtual
from scheduler.store.instances import recent_launches
from tests.support.behaviour import Behaviour
from tests.support.sim import Sim, spec
from tests.support.world import World, device


def ends(sim: Sim) -> list[LaunchEnd | None]:
    """How the launches of ``a`` ended, oldest first."""
    rows = sim.database.read_now(lambda conn: recent_launches(conn, instance_id(spec("a").name), 10))
    return [end for _, end in reversed(rows)]


def test_an_engine_that_lives_but_listens_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        world = World([device("gpu0", 10)], {"a": Behaviour(awake_bytes=2 * GIB, levels=())})
        sim = Sim(world, tmp_path, [spec("a")])
        await sim.start()
        assert await sim.chat("a") == "ok"
        life = world.engine("a").life
        assert life is not None
        life.refuses = True
        await sim.until(lambda: sim.phase("a") is Phase.UNKNOWN)
        await sim.until(lambda: sim.phase("a") is Phase.STOPPED)
        assert (sim.instance("a").reason.code, bool(sim.instance("a").reason.fix)) == (Code.ENGINE_LOST, True)
        assert await sim.chat("a") == "ok"
        first, second = ends(sim)
        assert first is not None
        assert second is not None
        assert (first.result, first.reason) == ("lost", Code.ENGINE_LOST)
        assert second.result == "ready"
        await sim.stop()

    run_virtual(main())
