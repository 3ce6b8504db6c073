"""Twenty models on four cards for half an hour of virtual time, while engines, cards, the disk and the daemon fail at random.

No request reaches an engine that is not awake, memory never exceeds what there is by decision, every request ends exactly once;
and when the faults have stopped, everybody is served, everything rests where it is wanted, and nothing is left to complain about.
"""

from pathlib import Path

import pytest

from scheduler.simulator.virtual_time import run_virtual
from tests.support.soak import Soak

pytestmark = pytest.mark.may_block  # how long a callback takes in virtual time says nothing


def soak(folder: Path, seed: int, minutes: float) -> Soak:
    async def main() -> Soak:
        life = Soak(folder, seed)
        await life.live(minutes)
        await life.heal()
        return life

    return run_virtual(main())


def test_a_few_minutes(tmp_path: Path) -> None:
    life = soak(tmp_path, 0, 3.0)
    assert life.ends["ok"] > life.figures["requests"] // 3, life.ends


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(1, 6))
def test_half_an_hour(tmp_path: Path, seed: int) -> None:
    life = soak(tmp_path, seed, 30.0)
    print(f"seed {seed}: {dict(life.figures)}; requests ended {dict(life.ends)}")
    assert life.ends["ok"] > life.figures["requests"] // 3, life.ends
