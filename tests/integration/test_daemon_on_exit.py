"""``on_exit: stop``: whatever runs ends with the daemon, and nothing is started meanwhile."""

from pathlib import Path

from tests.support.behaviour import Child
from tests.support.house import fake, house
from tests.support.real import MIB

SEAT = {"cpu0": 256 * MIB}
STOP = {"on_exit": "stop"}


async def test_engines_that_are_always_awake_end_with_the_daemon_too(tmp_path: Path) -> None:
    async with house(tmp_path, fake("a", awake="always") | fake("b"), SEAT, gateway=STOP) as daemon:
        assert (await daemon.chat("b"))[0] == 200
        await daemon.until("a", "awake")
        assert await daemon.terminate() == 0
        assert daemon.engine_processes() == set()
        await daemon.start()


async def test_a_removed_model_that_is_still_stopping_is_no_trouble(tmp_path: Path) -> None:
    stubborn = Child(ignores_term=True, outlives=True)
    async with house(tmp_path, fake("a", knobs={"children": (stubborn,)}) | fake("b"), SEAT, gateway=STOP) as daemon:
        assert (await daemon.chat("a"))[0] == 200
        await daemon.kill()
        daemon.models = {name: model for name, model in daemon.models.items() if name != "a"}
        await daemon.start()
        assert await daemon.terminate() == 0
        assert "Traceback" not in daemon.output()
        assert daemon.engine_processes() == set()
        await daemon.start()
