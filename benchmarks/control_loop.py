"""How long the reducer thinks about one event when a hundred models share four devices and a thousand requests wait.

Run it with ``python -m benchmarks.control_loop``; it writes results/control_loop.json. Times are CPU seconds of this process
(another program on the same cores does not count). Exit status 1 when an arrival costs more than its budget with 1000 requests held,
or the time-out of a whole queue at once more than its own.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.common import percentile, save_record
from scheduler.domain.ids import HoldId, LeaseId, ModelName
from scheduler.domain.lease import Hold, Outcome
from scheduler.domain.units import GIB
from scheduler.orchestrator.events import Happening, LeaseReleased, LeaseRequested, Sampled, Tick
from scheduler.orchestrator.reducer import next_deadline, reduce
from tests.support.behaviour import Behaviour
from tests.support.plain import EPOCH_S, Plain

ARRIVAL_BUDGET_MS = 2.0
TIMEOUT_BUDGET_MS = 100.0
MODELS = 100
SERVING = 12  # as many as fit
WANTED = 80
FIRST_HOLD = 10_000
PROBES = 40


def make_world() -> Plain:
    """Four devices full of models in use."""
    names = [f"m{n}" for n in range(MODELS)]
    world = Plain({f"gpu{n}": 24 for n in range(4)}, behaviours=dict.fromkeys(names, Behaviour(awake_bytes=6 * GIB)))
    for name in names[:SERVING]:
        world.ask(name, 2, for_s=100_000)
    world.run(120)
    return world


def make_hold(world: Plain, n: int, model: str, patience_s: float) -> Hold:
    """A request that arrives now."""
    ends = world.now_s + patience_s
    return Hold(id=HoldId(FIRST_HOLD + n), model=ModelName(model), arrived_s=world.now_s, deadline_s=ends, limit_s=ends + 20_000)


def milliseconds(world: Plain, event: Happening) -> float:
    """CPU time of one event, with the look at the alarm clock that follows it."""
    began = time.process_time()
    reduce(world.state, event, EPOCH_S + world.now_s)
    next_deadline(world.state)
    return 1e3 * (time.process_time() - began)


def time_events(held: int) -> dict[str, float]:
    """Mean times with ``held`` requests waiting for up to 80 models that find no seat."""
    world = make_world()
    models = [f"m{n % WANTED + SERVING}" for n in range(held)]
    for n, model in enumerate(models):
        milliseconds(world, LeaseRequested(at_s=world.now_s, hold=make_hold(world, n, model, 6000.0)))
    last = held

    def arrive() -> Happening:
        nonlocal last
        last += 1
        return LeaseRequested(at_s=world.now_s, hold=make_hold(world, last, models[last % len(models)], 6000.0))

    def sample() -> Happening:
        return Sampled(at_s=world.now_s, samples=tuple(world._sample(info) for info in world.infos))

    leases = iter(_one_of_each(world))
    events: dict[str, tuple[Callable[[], Happening], int]] = {
        "arrival": (arrive, PROBES),
        "tick": (lambda: Tick(at_s=world.now_s), PROBES),
        "answer ended": (lambda: LeaseReleased(at_s=world.now_s, lease=next(leases), outcome=Outcome.OK), SERVING),
        "measurement": (sample, 5),
    }
    figures: dict[str, float] = {}
    for name, (make, times) in events.items():
        took = []
        for _ in range(times):
            world.now_s += 1.0 if name == "measurement" else 0.002
            took.append(milliseconds(world, make()))
        figures[f"{name}_ms"] = round(sum(took) / len(took), 3)
        figures[f"{name}_p95_ms"] = round(percentile(took, 0.95), 3)
    return figures


def _one_of_each(world: Plain) -> list[LeaseId]:
    """One lease of every model that serves: each stays in use by its other one."""
    return list({lease.model: lease.id for lease in world.state.leases.values()}.values())


def time_mass_timeout(waiters: int) -> dict[str, float]:
    """A full queue behind one long answer: arrivals, and the moment at which all of it times out."""
    world = Plain({"gpu0": 24}, specs={"a": {"max_concurrent": 1}}, a=Behaviour(awake_bytes=16 * GIB))
    world.ask("a", for_s=100_000)
    world.run(10)
    arrivals = [milliseconds(world, LeaseRequested(at_s=world.now_s, hold=make_hold(world, n, "a", 120.0))) for n in range(waiters)]
    world.now_s += 120.0
    return {"arrival_p95_ms": round(percentile(arrivals, 0.95), 3), "timeout_ms": round(milliseconds(world, Tick(at_s=world.now_s)), 2)}


def main() -> int:
    """Print the figures, write the record."""
    began_s = time.time()
    few, many = time_events(10), time_events(1000)
    print(f"10 requests held: {few}")
    print(f"1000 requests held: {many}")
    ratios = {name: round(many[name] / max(1e-6, few[name]), 1) for name in few if not name.endswith("p95_ms")}
    print(f"1000 against 10: {ratios}")
    mass = time_mass_timeout(512)
    print(f"512 behind one: {mass}")
    figures: dict[str, Any] = {"held_10": few, "held_1000": many, "ratio_1000_to_10": ratios, "queue_of_512": mass}
    budgets = {"arrival_ms": ARRIVAL_BUDGET_MS, "timeout_ms": TIMEOUT_BUDGET_MS}
    save_record("control_loop", {"budgets": budgets, **figures}, at_s=began_s)
    return 0 if many["arrival_ms"] <= ARRIVAL_BUDGET_MS and mass["timeout_ms"] <= TIMEOUT_BUDGET_MS else 1


if __name__ == "__main__":
    sys.exit(main())
