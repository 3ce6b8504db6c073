"""Half an hour in the life of twenty models on four cards, in virtual time, with everything going wrong now and then."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

from scheduler.domain.device import Health
from scheduler.domain.errors import Temporary
from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.instance import EMPTY_PHASES, Phase
from scheduler.domain.model import DeviceWish, ModelSpec
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.telemetry.tasks import spawn
from tests.support.behaviour import Behaviour, StartFailure
from tests.support.sim import Sim, spec
from tests.support.world import World, device

CARDS = tuple(DeviceId(f"gpu{n}") for n in range(4))
CARD_GIB = 24
HOST_LIMIT = 64 * GIB
#: Nobody can know of what somebody else took since the last measurement, which may be so old (seconds).
UNSEEN_S = 6.0


def models(random: Random, count: int) -> tuple[list[ModelSpec], dict[str, Behaviour]]:
    """Every fifth model is a gang of two, every fifth cannot sleep, every fifth has level 2 only."""
    specs, behaviours = [], {}
    for n in range(count):
        name, wish = f"m{n:02}", DeviceWish(count=2) if n % 5 == 0 else DeviceWish()
        size = random.randint(4, 18) * GIB
        behaviours[name] = Behaviour(
            awake_bytes=size,
            loading_bytes=size + random.choice([0, GIB]),
            start_s=random.choice([8.0, 20.0, 40.0]),
            levels={1: (), 2: (2,)}.get(n % 5, (1, 2)),
            sleep_s=random.choice([0.3, 1.0]),
            wake_s=random.choice([0.5, 1.0, 3.0]),
            reload_s=random.choice([0.0, 2.0]),
            residue_bytes={1: random.choice([GIB // 2, GIB]), 2: GIB // 2},
            host_bytes={1: size + 2 * GIB},
            free_lag_s=random.choice([0.0, 0.0, 0.4, 1.5]),
            term_s=random.choice([0.2, 2.0]),
        )
        specs.append(spec(name, devices=wish, max_wait_s=300.0, start_timeout_s=120.0))
    return specs, behaviours


class Soak:
    """``live`` for a while, then ``heal``; both raise AssertionError for what must not be. Make it inside a virtual loop."""

    def __init__(self, folder: Path, seed: int, count: int = 20) -> None:
        self.random = Random(seed)
        specs, self.well = models(self.random, count)
        self.names = [s.name for s in specs]
        cards = [device(card, CARD_GIB, index=n, islands=(f"nvlink:{n // 2}", "host")) for n, card in enumerate(CARDS)]
        self.world = World(cards, dict(self.well))
        self.world.host_total_bytes = 512 * GIB
        self.sim = Sim(self.world, folder, specs, host_limit_bytes=HOST_LIMIT, boundary=self._boundary)
        self.figures: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self._clients: set[asyncio.Task[str]] = set()
        self._disk_full = False
        self._foreign_at_s: dict[DeviceId, float] = {}
        self._swelling: set[str] = set()  # models of which a run took more and more: nobody decided that

    def _boundary(self, name: str) -> None:
        if self._disk_full and name.startswith("written:"):
            raise Temporary("the disk is full", code="store_full", retry_after_s=1.0, fix="make room")

    # --- demand -----------------------------------------------------------------------------------------------------

    def ask(self, model: str) -> None:
        """A client asks, and waits as long as clients do."""
        self.figures["requests"] += 1
        seconds = self.random.choice([0.1, 0.5, 2.0, 10.0])
        client = spawn(self.sim.chat(model, seconds, wait_s=self.random.choice([20.0, 120.0, 300.0])), "client", expected=(Exception,))
        self._clients.add(client)
        client.add_done_callback(self._ended)

    def _ended(self, client: "asyncio.Task[str]") -> None:
        self._clients.discard(client)
        self.ends["daemon_gone" if client.cancelled() else client.result()] += 1

    # --- faults -----------------------------------------------------------------------------------------------------

    def _fault(self) -> Callable[[], object]:
        faults: list[tuple[int, Callable[[], object]]] = [
            (6, self._kill),
            (2, self._silence),
            (6, self._spoil),
            (3, self._lose),
            (1, self._vanish),
            (2, self._fall_ill),
            (2, self._blind),
            (2, self._slow),
            (3, self._foreign),
            (2, self._fill_disk),
            (4, self._operate),
        ]
        return self.random.choices([do for _, do in faults], [weight for weight, _ in faults])[0]

    def _later(self, do: Callable[[], object], least_s: float = 10.0, most_s: float = 60.0) -> None:
        asyncio.get_running_loop().call_later(self.random.uniform(least_s, most_s), do)

    def _kill(self) -> None:
        alive = sorted({p.model for p in self.world.engines()})
        if alive:
            self.world.kill(self.random.choice(alive))

    def _silence(self) -> None:
        """An engine accepts connections and answers nothing any more."""
        alive = sorted((p for p in self.world.engines() if p.life is not None), key=lambda p: p.pid)
        if alive:
            life = self.random.choice(alive).life
            assert life is not None
            life.silent = True

    def _spoil(self) -> None:
        """The next run of a model goes wrong in one way; later runs do not."""
        name = self.random.choice(self.names)
        knobs: Mapping[str, object] = self.random.choice(
            [
                {"start_failures": (StartFailure(code=Code.CRASHED),) * 10_000},
                {"wake_hangs": 1},
                {"wake_errors": 1},
                {"wake_errors": 1, "wake_error_text": "illegal memory access"},
                {"sleep_frees_nothing": True},
                {"sleep_hangs": 1},
                {"sleep_errors": 1},
                {"garbage_levels": (1, 2)},
                {"reload_error": "it cannot reload"},
                {"growth_bps": 1e7, "growth_limit_bytes": GIB},
                {"wedged_after_wake": True},
                {"residue_growth_bytes": GIB // 2},
            ]
        )
        if "growth_bps" in knobs:
            self._swelling.add(name)
        self.world.behaviours[name] = replace(self.well[name], **knobs)  # type: ignore[arg-type]
        self._later(lambda: self.world.behaviours.update({name: self.well[name]}), 30.0, 120.0)

    def _lose(self) -> None:
        card = self.random.choice(CARDS)
        if self._is_well(card):
            self.world.lose(card)
            self._later(lambda: self.world.ail(card, Health.OK))

    def _vanish(self) -> None:
        card = self.random.choice(CARDS)
        if self._is_well(card):
            self.world.vanish(card)
            self._later(lambda: self.world.vanish(card, absent=False))

    def _fall_ill(self) -> None:
        card = self.random.choice(CARDS)
        if self._is_well(card):
            self.world.ail(card, Health.DRAINING, "an uncorrectable memory error")
            self._later(lambda: self.world.ail(card, Health.OK))

    def _is_well(self, card: DeviceId) -> bool:
        return self.world.devices[card].health is Health.OK and not self.world.devices[card].absent

    def _blind(self) -> None:
        there = self.world.devices[self.random.choice(CARDS)]
        there.readable = False
        self._later(lambda: setattr(there, "readable", True), 2.0, 20.0)

    def _slow(self) -> None:
        self.world.sample_s = self.random.choice([0.2, 1.5])
        self._later(lambda: setattr(self.world, "sample_s", 0.0))

    def _foreign(self) -> None:
        card = self.random.choice(CARDS)
        self._take(card, self.random.randint(1, 20) * GIB)
        self._later(lambda: self._take(card, 0), 10.0, 120.0)

    def _take(self, card: DeviceId, size: int) -> None:
        """Somebody else takes what he wants, as far as it is there."""
        there = self.world.devices[card]
        free = there.info.capacity_bytes - self.world.used_bytes(card) + there.foreign_bytes
        self._foreign_at_s[card] = self.world.now_s
        self.world.set_foreign(card, max(0, min(size, free)))

    def _fill_disk(self) -> None:
        self._disk_full = True
        self._later(lambda: setattr(self, "_disk_full", False), 1.0, 20.0)

    def _operate(self) -> None:
        verb = self.random.choice(["wake", "sleep", "stop", "restart"])
        self.sim.ask(verb, self.random.choice(self.names), force=self.random.random() < 0.3, patience_s=120.0)

    async def _restart(self) -> None:
        """The daemon is killed; a while later the next one comes."""
        await self.sim.crash()
        for client in list(self._clients):
            client.cancel()
        if self._clients:
            await asyncio.wait(self._clients)
        await asyncio.sleep(self.random.choice([0.0, 1.0, 10.0]))
        self._disk_full = False
        await self.sim.start()

    # --- the whole of it --------------------------------------------------------------------------------------------

    async def live(self, minutes: float) -> None:
        """Demand, faults and crashes of the daemon, each at random."""
        await self.sim.start()
        end = self.world.now_s + 60.0 * minutes
        due = {"ask": 0.0, "fault": 20.0, "restart": self.random.uniform(60.0, 300.0)}
        every_s = {"ask": 2.0, "fault": 8.0, "restart": 300.0}
        while (what := min(due, key=lambda key: due[key])) and due[what] < end:
            await asyncio.sleep(max(0.0, due[what] - self.world.now_s))
            due[what] = self.world.now_s + self.random.expovariate(1 / every_s[what])
            match what:
                case "ask":
                    self.ask(self.random.choices(self.names, [1.0 / (n + 3) for n in range(len(self.names))])[0])
                case "fault":
                    fault = self._fault()
                    self.figures[fault.__name__.strip("_")] += 1
                    fault()
                case _:
                    self.figures["restart"] += 1
                    await self._restart()
            self.check()

    def check(self) -> None:
        """What must hold at any moment."""
        assert not self.world.misdirected, self.world.misdirected
        assert not self.world.happened("garbage"), self.world.happened("garbage")
        known = [e for e in self.world.overflows if e.at_s - self._foreign_at_s.get(DeviceId(e.subject), -1e9) > UNSEEN_S]
        chosen = [e for e in known if e.detail.rpartition(" ")[2] not in self._swelling]
        assert not chosen, chosen

    async def heal(self) -> None:
        """No fault any more: everybody who waits is answered or refused, everybody can be served, everything comes to rest."""
        self.world.behaviours = {ModelName(name): knobs for name, knobs in self.well.items()}
        await asyncio.sleep(150.0)  # what a fault has turned is turned back by then
        if self._clients:
            await asyncio.wait(self._clients, timeout=3000.0)
        assert not self._clients, "a request was neither answered nor refused"
        for name in self.names:
            if self.sim.phase(name) in (Phase.FAILED, Phase.BACKOFF):
                await self.sim.act("restart", name)
            answer = await self.sim.chat(name)
            assert answer == "ok", (name, answer, self.sim.phases())
        await self.sim.until(self.at_rest, within_s=600.0)
        self.check()
        state = self.sim.kernel.state
        assert not state.degraded, state.degraded
        assert self.sim.ledger_matches() == []
        assert sum(self.ends.values()) == self.figures["requests"], "a request ended twice, or never"
        for what in ("started", "asleep", "woken", "out_of_memory"):
            self.figures[f"world: {what}"] = len(self.world.happened(what))
        await self.sim.stop()

    def at_rest(self) -> bool:
        """Goal and phase agree everywhere, nobody moves, nobody waits."""
        state, stable = self.sim.kernel.state, EMPTY_PHASES | {Phase.AWAKE, Phase.ASLEEP}
        if state.holds or state.moves or state.wishes or state.leases:
            return False
        found = state.instances.values()
        return all(i.phase in stable and (i.phase in EMPTY_PHASES or i.goal.phase is i.phase) for i in found)
