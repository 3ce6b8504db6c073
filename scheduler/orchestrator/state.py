"""All that the scheduler knows, in one place, written by the reducer only."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from scheduler.domain.claims import Footprint
from scheduler.domain.device import MEASURED, DeviceInfo, DeviceSample, HostSample
from scheduler.domain.ids import ActionId, CauseId, DeviceId, InstanceId, LaunchId, LeaseId, ModelName, MoveId, holder_of
from scheduler.domain.instance import Goal, Instance, Phase
from scheduler.domain.learned import Learned, combine
from scheduler.domain.lease import Hold, Lease
from scheduler.domain.model import ModelSpec
from scheduler.domain.plan import Move
from scheduler.domain.reasons import Reason
from scheduler.domain.units import GIB
from scheduler.orchestrator.holds import Holds
from scheduler.planner.evict import NotNow
from scheduler.planner.turns import Demand, Fairness

#: How long a forced drain waits for the relay to write its error events before the engine is touched.
FORCE_GRACE_S = 2.0
HOST_MARGIN_BYTES = 2 * GIB  # of available host memory, never given to a copy
#: Age of a measurement of host memory from which no new copy is made. It is taken after those of devices, of which one may hang
#: for seconds; beside that, only a system without descriptors or without /proc cannot measure it.
HOST_STALE_S = 30.0
STALE_PERIODS = 3  # a sample older than this many sampling periods is no evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Numbers of the configuration that decisions need; seconds."""

    turn_factor: float = 4.0
    auto_max_wait_s: float = 120.0
    sample_period_s: float = 1.0
    progress_window_s: float = 60.0  # a start that did nothing for so long extends no wait any more
    term_grace_s: float = 10.0  # TERM to KILL
    kill_again_s: float = 5.0
    sleep_timeout_s: float = 60.0
    sleep_settle_s: float = 10.0  # from "asleep" said to bytes seen free
    wake_timeout_s: float = 60.0
    probe_timeout_s: float = 30.0
    stop_settle_s: float = 10.0  # from an empty group to bytes seen free, before the alarm
    max_launch_failures: int = 3
    max_crashes: int = 5
    half_open_s: float = 900.0  # from giving up to the try that a request gets
    attached_half_open_s: float = 5.0  # the same of somebody else's engine: to look for it costs nothing
    keep_turn_s: float = 30.0
    recycle_cycles: int = 200  # sleeps after which an engine is started afresh when idle
    interrupt: bool = False  # after drain_timeout, cut the requests of a model that makes room for others


@dataclass(slots=True)
class Live:
    """What is known of an instance only while the daemon lives; lost in a crash and found out again."""

    leases: set[LeaseId] = field(default_factory=set)
    inherited: bool = False  # adopted: the old daemon's requests may still run inside
    slow: bool = False
    refused: bool = False
    emptied_at_s: float | None = None  # its process group was seen empty
    returned_at_s: float | None = None  # the engine said it sleeps
    returned_level: int | None = None
    unanswered_sleeps: int = 0  # in a row
    doubts: int = 0  # looks at it since it was last awake, because it holds too much for a sleeper
    doubt_at_s: float = 0.0  # not looked at for that again before
    effect_at_s: float = 0.0  # when the transition in progress began
    timed: bool = False  # its duration is known: it began in this daemon or was seen under way, and its end is looked for
    progress_at_s: float = 0.0  # when the start in progress last did something
    odd_answer: str = ""  # what it answers while it should be loading
    launched_at_s: float | None = None  # when the start in progress began; None = nobody knows any more
    measured: dict[DeviceId, int] = field(default_factory=dict)
    watched: bool = False  # this daemon saw the start of this run from its beginning
    peak_bytes: int = 0  # most seen during the start in progress
    awake_bytes: int = 0  # most seen while awake in this run
    held_bytes: int = 0  # on the fullest device, seen last while it was awake; 0 = nobody has looked since it woke
    seen_bytes: int = 0  # on all its devices, measured last where it is now, awake or asleep; 0 = nobody has looked since it is there
    known_bytes: int = 0  # while awake in this run, on the fullest device: as seen first, or as told last
    kv_bytes: int = 0  # of the present run, per device
    learned_run: bool = False
    new_copy_bytes: int = 0  # of host memory, that the last sleep added to its claim
    host_awake_bytes: int | None = None  # host memory of its processes before it fell asleep
    first_residue_bytes: int | None = None  # of the first sleep of this run
    cycles: int = 0  # sleeps of this run
    recycle: str = ""  # why it is to be started afresh when idle
    sleepless: bool = False  # the start in progress is made without what sleeping needs
    wake_sent: bool = False  # the wake in progress has reached the engine
    wake_lacked_room: bool = False  # the last wake failed for want of memory
    exit_reason: Reason | None = None
    fingerprint: str = ""  # of the spec its process was started with
    served: bool = False  # it answered at least one request since it became awake
    alarmed: bool = False
    fairness: Fairness = field(default_factory=Fairness)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """An operator's or the scheduler's wish about an instance that no request stands behind."""

    goal: Goal
    cause: CauseId
    reason: Reason
    force: bool = False
    action: ActionId | None = None
    restart: bool = False


@dataclass(slots=True)
class ModelFacts:
    """What is remembered per model besides its definition."""

    levels: tuple[int, ...] = ()
    attached: bool = False  # somebody else's process: it is never stopped
    kinds: tuple[str, ...] = ()  # kinds of device its engine runs on, preferred first
    guess: Footprint = field(default_factory=lambda: Footprint(awake_bytes=GIB))
    learned: Learned = field(default_factory=Learned)
    learned_kind: str = ""  # kind of device that it was learned on; empty = on none that is known
    archive: dict[str, Learned] = field(default_factory=dict)  # what other versions of the engine taught, by version
    last_used_s: float | None = None
    last_used_wall: float | None = None
    service_s: float = 2.0  # exponential mean of lease durations
    turn_kept_until_s: float = 0.0  # a waiter timed out: its turn is kept for the retry
    half_open_at_s: float | None = None
    wakes: int = 0
    sleeps: int = 0
    starts: int = 0
    cold_hits: int = 0
    requests: int = 0
    _planned: tuple[Footprint, Learned, Footprint] | None = field(default=None, repr=False, compare=False)

    @property
    def footprint(self) -> Footprint:
        """The footprint to plan with; put together once for each guess and what was learned since."""
        known = self._planned
        if known is None or known[0] is not self.guess or known[1] is not self.learned:
            known = self._planned = (self.guess, self.learned, combine(self.guess, self.learned))
        return known[2]

    def usable_levels(self) -> tuple[int, ...]:
        """Levels that may be tried: those the engine has, less those that freed nothing; none where it only starts without them."""
        if self.learned.sleepless is not None:
            return ()
        return tuple(level for level in self.levels if level not in self.learned.denied_levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """Why nothing could be done for a model, and what that was said of (monotonic seconds)."""

    answer: NotNow
    wants: Demand  # made anew by every change of the model's holds
    given: tuple[object, ...]  # the model itself
    noted_s: float
    until_s: float  # when the first seat becomes free by time alone
    services: Mapping[ModelName, float]  # seconds of a request, by which the ends of turns were reckoned


@dataclass(slots=True)
class Counters:
    """Next ids; seeded from the journal at start."""

    seq: int = 1
    launch: int = 1
    lease: int = 1
    move: int = 1
    hold: int = 1


@dataclass(slots=True)
class State:
    """The scheduling state. ``now_s`` and ``wall`` are set by ``reduce`` before anything else."""

    policy: Policy = field(default_factory=Policy)
    now_s: float = 0.0
    wall: float = 0.0
    models: dict[ModelName, ModelSpec] = field(default_factory=dict)
    facts: dict[ModelName, ModelFacts] = field(default_factory=dict)
    devices: dict[DeviceId, DeviceInfo] = field(default_factory=dict)
    vanished: dict[DeviceId, tuple[DeviceInfo, float]] = field(default_factory=dict)  # no longer in the list, since when
    samples: dict[DeviceId, DeviceSample] = field(default_factory=dict)
    foreign: dict[DeviceId, list[tuple[float, int]]] = field(default_factory=dict)  # falling edge of what others used: (when, bytes)
    vacated_s: dict[DeviceId, float] = field(default_factory=dict)  # when one of ours last gave memory back there
    host_limit_bytes: int = 0
    host: HostSample | None = None  # the last measurement; None = nobody measures host memory
    instances: dict[InstanceId, Instance] = field(default_factory=dict)
    live: dict[InstanceId, Live] = field(default_factory=dict)
    holds: Holds = field(default_factory=Holds)
    hold_reasons: dict[ModelName, Reason] = field(default_factory=dict)
    blocked_until: dict[ModelName, float] = field(default_factory=dict)  # when time alone may let it in
    cooldown: dict[ModelName, float] = field(default_factory=dict)  # not tried again before
    leases: dict[LeaseId, Lease] = field(default_factory=dict)
    moves: dict[MoveId, Move] = field(default_factory=dict)
    wishes: dict[InstanceId, Wish] = field(default_factory=dict)
    closing: bool = False  # the daemon ends and takes its engines along
    degraded: dict[str, tuple[str, str, float]] = field(default_factory=dict)  # code -> (message, fix, since wall)
    store_ok: bool = True
    last_seq: dict[InstanceId, int] = field(default_factory=dict)
    settle_until: dict[MoveId, float] = field(default_factory=dict)  # a grow waits for bytes to be seen free
    begun: set[MoveId] = field(default_factory=set)  # moves whose grow was tried
    next: Counters = field(default_factory=Counters)
    stuck: dict[ModelName, Stuck] = field(default_factory=dict, repr=False, compare=False)  # see standstill: nothing but memory
    stuck_in: tuple[object, ...] = field(default=(), repr=False, compare=False)

    def half_open_s(self, model: ModelName) -> float:
        """Seconds from giving a model up to the try that a request gets."""
        return self.policy.attached_half_open_s if self.facts_of(model).attached else self.policy.half_open_s

    def holds_of(self, model: ModelName) -> list[Hold]:
        """All holds of a model, in arrival order."""
        return list(self.holds.of(model).values())

    def demand(self, model: ModelName) -> Demand:
        """What all holds of a model want together."""
        return self.holds.demand(model)

    def live_of(self, instance: InstanceId) -> Live:
        """The live facts of an instance, made when first asked for."""
        found = self.live.get(instance)
        return found if found is not None else self.live.setdefault(instance, Live())

    def facts_of(self, model: ModelName) -> ModelFacts:
        """The remembered facts of a model."""
        found = self.facts.get(model)
        return found if found is not None else self.facts.setdefault(model, ModelFacts())

    def fresh_sample(self, device: DeviceId) -> DeviceSample | None:
        """The last sample, unless it is too old to be evidence."""
        sample = self.samples.get(device)
        if sample is None or sample.health not in MEASURED:
            return None
        return sample if self.now_s - sample.started_at_s <= STALE_PERIODS * self.policy.sample_period_s else None

    def foreign_on(self, device: DeviceId) -> int:
        """What others used there when it was measured last, attached engines that are not taken in among them."""
        sample = self.samples.get(device)
        return 0 if sample is None else sample.foreign_bytes + self._not_taken_in(sample)

    def foreign_planned(self, device: DeviceId) -> int:
        """The most that others used lately: what is planned ahead with."""
        edge, sample = self.foreign.get(device), self.samples.get(device)
        return (edge[0][1] if edge else 0) + (0 if sample is None else self._not_taken_in(sample))

    def _not_taken_in(self, sample: DeviceSample) -> int:
        """Bytes of engines that were found by their ports: measured by themselves, and claimed by nobody yet."""
        return sum(held for holder, held in sample.own.items() if not self.has_process(InstanceId(holder)))

    def claimed_on(self, device: DeviceId) -> int:
        """Sum of all claims on a device."""
        return sum(i.claim.on(device) for i in self.instances.values())

    def host_claimed(self) -> int:
        """Sum of host-memory claims."""
        return sum(i.claim.host_bytes for i in self.instances.values())

    def host_room(self) -> int:
        """Bytes of host memory that copies may still claim: by the ledger, and by what the machine has left."""
        room = self.host_limit_bytes - self.host_claimed()
        if self.host is None:
            return room
        return min(room, 0 if self.host_is_stale() else self.host.available_bytes - self._copies_under_way() - HOST_MARGIN_BYTES)

    def host_is_stale(self) -> bool:
        """Whether the last measurement of host memory is too old to be evidence."""
        return self.host is not None and self.now_s - self.host.started_at_s > HOST_STALE_S

    def _copies_under_way(self) -> int:
        """Bytes of copies that are being made, or were made since host memory was measured: nobody else has them to take."""
        since_s = self.host.started_at_s if self.host is not None else float("-inf")
        sleeps = ((i, i.before if i.phase is Phase.UNKNOWN else i.phase) for i in self.instances.values())
        new = (i for i, phase in sleeps if phase is Phase.FALLING_ASLEEP or (phase is Phase.ASLEEP and i.since_s > since_s))
        return sum(self.live_of(i.id).new_copy_bytes for i in new)

    def measured_of(self, instance: InstanceId) -> dict[DeviceId, int]:
        """Last measured bytes of an instance per device."""
        holder = holder_of(instance)
        return {d: s.own[holder] for d, s in self.samples.items() if holder in s.own}

    def owned_devices(self) -> frozenset[DeviceId]:
        """Devices that belong to an open move."""
        return frozenset(d for move in self.moves.values() for d in move.devices)

    def move_of(self, instance: InstanceId) -> Move | None:
        """The open move that has a step for this instance."""
        for move in self.moves.values():  # plain loops: asked for every waiting model after every event
            for step in move.steps:
                if step.instance == instance:
                    return move
        return None

    def with_process(self) -> Iterator[Instance]:
        """Instances whose engine process may exist."""
        return (i for i in self.instances.values() if i.has_process)

    def has_process(self, instance: InstanceId) -> bool:
        """Whether an engine process of this instance may exist."""
        found = self.instances.get(instance)
        return found is not None and found.has_process

    def busy(self, instance: InstanceId) -> bool:
        """Whether requests run on it."""
        live = self.live.get(instance)
        return live is not None and (bool(live.leases) or live.inherited)

    def wanted(self, model: ModelName) -> bool:
        """Whether somebody waits for it, or just did and may come back."""
        return model in self.holds.models() or self.facts_of(model).turn_kept_until_s > self.now_s

    def progressed_at(self, instance: Instance) -> float:
        """When a start last made progress: its beginning counts."""
        return max(instance.since_s, self.live_of(instance.id).progress_at_s)

    def launch_of(self, instance: InstanceId) -> LaunchId | None:
        """The launch an instance runs."""
        found = self.instances.get(instance)
        return found.launch if found is not None else None
