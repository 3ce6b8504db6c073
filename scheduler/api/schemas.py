"""What the control API says, as pydantic models: one place for names, units and nulls.

Every key is always present; what is not known is null. Bytes are integers, seconds are numbers, times are RFC 3339 in
UTC on the wire and POSIX seconds in Python.
"""

from datetime import UTC, datetime
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

T = TypeVar("T")

Verb = Literal["wake", "sleep", "stop", "restart"]
VERBS: tuple[Verb, ...] = ("wake", "sleep", "stop", "restart")


def rfc3339(posix_s: float) -> str:
    """POSIX seconds as ``2026-11-30T14:03:12.345Z``."""
    return datetime.fromtimestamp(posix_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _posix(value: object) -> object:
    if isinstance(value, str):
        return datetime.fromisoformat(value).timestamp()
    return value


Time = Annotated[float, BeforeValidator(_posix), PlainSerializer(rfc3339, return_type=str)]


class Schema(BaseModel):
    """Base: immutable, unknown keys refused, and nothing left out when it is written."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)


# --- GET status (interfaces.md section 3) ----------------------------------------------------------------------------


class Degraded(Schema):
    """Something does not work as it should; serving goes on as far as it can. ``since`` = when it began."""

    code: str
    subject: str
    since: Time | None = None
    message: str
    fix: str = ""


class Stranger(Schema):
    """A process on a device that is not ours. ``used_bytes`` null = the driver does not say."""

    pid: int
    used_bytes: int | None = None
    name: str | None = None


class Device(Schema):
    """One device, seat or not. What was never sampled is null; ``instances`` are the ids seated there.

    ``estimated`` = some processes have no number of their own; ``source`` = where the memory numbers come from;
    ``islands`` = groups of devices it is linked with, tightest first; ``facts`` for people: driver, modes, ... Of one that
    was there before and is missing now little more than its id is known.
    """

    id: str
    index: int | None
    uuid: str | None = None
    kind: str | None
    name: str | None
    total_bytes: int | None
    used_bytes: int | None = None
    free_bytes: int | None = None
    foreign_bytes: int | None = None
    claimed_bytes: int = 0
    reserved_bytes: int = 0
    headroom_bytes: int = 0
    utilization_ratio: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: list[str] = []
    health: str = "ok"
    trouble: str | None = None
    fix: str | None = None
    cordoned: bool = False
    sampled_at: Time | None = None
    estimated: bool = False
    source: str | None = None
    parent: str | None = None
    islands: list[str] = []
    numa_node: int | None = None
    pci: str | None = None
    allocatable: bool = True
    why_not: str | None = None
    max_processes: int | None = None
    facts: dict[str, str] = {}
    strangers: list[Stranger] = []
    instances: list[str] = []


class Why(Schema):
    """A reason: a stable code and one sentence with numbers."""

    code: str
    text: str


class Override(Schema):
    """An operator's word that stands above the file: who said it, and until when (null = for good)."""

    kind: str
    until: Time | None = None
    by: str


class Failure(Schema):
    """Why a model does not work: ``attempts`` so far, ``retry_at`` when the daemon tries again by itself."""

    code: str
    message: str
    fix: str = ""
    at: Time | None = None
    attempts: int = 0
    retry_at: Time | None = None


class Counters(Schema):
    """Since the model was first seen."""

    wakes: int = 0
    sleeps: int = 0
    starts: int = 0
    cold_hits: int = 0
    requests: int = 0


class InstanceStatus(Schema):
    """One engine process (group) of a model; ``since`` = when it entered its phase."""

    id: str
    variant: str | None = None
    phase: str
    level: int | None = None
    goal: str
    devices: list[str] = []
    claimed_bytes: int = 0
    used_bytes: int | None = None
    pid: int | None = None
    since: Time | None = None


class ModelStatus(Schema):
    """One model. ``phase`` is its best instance's; ``eta_s`` = seconds from now until it can answer, when one is known."""

    name: str
    aliases: list[str] = []
    engine: str
    attached: bool = False
    source: str
    enabled: bool = True
    model_class: str = Field(default="interactive", alias="class")
    phase: str = "stopped"
    level: int | None = None
    goal: str = "stopped"
    devices: list[str] = []
    claimed_bytes: int = 0
    used_bytes: int | None = None
    active: int = 0
    held: int = 0
    last_used_at: Time | None = None
    overrides: list[Override] = []
    reason: Why | None = None
    eta_s: float | None = None
    error: Failure | None = None
    instances: list[InstanceStatus] = []
    counters: Counters = Counters()


class HostMemory(Schema):
    """Host memory given to sleepers and to KV tiers."""

    sleep_bytes: int | None = None
    sleep_limit_bytes: int | None = None
    kv_bytes: int | None = None


class Disk(Schema):
    """Free bytes where the state directory and the KV tier live."""

    state_free_bytes: int | None = None
    kv_free_bytes: int | None = None


class Jobs(Schema):
    """Batch and command jobs."""

    queued: int = 0
    running: int = 0


class Step(Schema):
    """One thing the plan will do."""

    at: Time
    model: str
    action: str


class Plan(Schema):
    """The plan in force; version 0 = none yet."""

    version: int = 0
    next: list[Step] = []


class Status(Schema):
    """GET status. ``interrupted`` counts the requests this daemon had to cut short since it started."""

    version: str
    uptime_s: float
    ready: bool
    interrupted: int = 0
    degraded: list[Degraded] = []
    devices: list[Device] = []
    models: list[ModelStatus] = []
    host: HostMemory = HostMemory()
    disk: Disk = Disk()
    jobs: Jobs = Jobs()
    plan: Plan = Plan()


# --- devices ---------------------------------------------------------------------------------------------------------


class Claim(Schema):
    """What one instance has reserved on a device, and what was measured of it there."""

    instance: str
    model: str
    phase: str
    level: int | None = None
    claimed_bytes: int = 0
    used_bytes: int | None = None


class Link(Schema):
    """Other devices of one island; ``kind`` = how they are linked: nvlink, pcie, numa, host."""

    kind: str
    island: str
    devices: list[str]


class DeviceDetail(Device):
    """GET devices/{id}: the status plus who holds what there, and what it is linked with.

    ``margin_bytes`` is the distance to measured free memory that a growing model keeps.
    """

    margin_bytes: int
    claims: list[Claim] = []
    links: list[Link] = []


# --- models, story, logs ---------------------------------------------------------------------------------------------


class Memory(Schema):
    """What the model takes on each of its ``devices``. ``source`` says which number counts now; null = nothing is known yet.

    ``residue_bytes`` maps a sleep level to what a sleeper keeps.
    """

    devices: int = 1
    source: Literal["declared", "estimated", "measured"] | None = None
    measured_bytes: int | None = None
    estimated_bytes: int | None = None
    start_peak_bytes: int | None = None
    residue_bytes: dict[int, int] = {}


class Sleep(Schema):
    """How the model sleeps on devices of its kind. ``levels`` may be tried; ``denied_levels`` its engine has, but they did not work.

    The maps are by level, from measurements: ``host_bytes`` of a sleeper's copy, and seconds from awake to asleep and back.
    ``version`` is the engine's when these were learned; another one is tried anew.
    """

    levels: list[int] = []
    denied_levels: list[int] = []
    version: str | None = None
    host_bytes: dict[int, int] = {}
    sleep_s: dict[int, float] = {}
    wake_s: dict[int, float] = {}


class Start(Schema):
    """One launch. ``result``: running (no end yet), ready (served), failed, stopped or lost; ``exit`` in words."""

    launch: int
    at: Time
    duration_s: float | None = None
    result: Literal["running", "ready", "failed", "stopped", "lost"]
    exit: str | None = None
    reason: Why | None = None


class ModelDetail(ModelStatus):
    """GET models/{name}: the status plus what the card of a failure needs. ``starts`` newest first."""

    model: str | None = None
    description: str = ""
    unlisted: bool = False
    memory: Memory = Memory()
    sleep: Sleep = Sleep()
    starts: list[Start] = []
    log_line: str | None = None


class StoryEntry(Schema):
    """One transition of an instance: what happened, and what caused it (``hold:7``, ``action:a3``, ...)."""

    seq: int
    at: Time
    instance: str
    from_phase: str = Field(alias="from")
    to_phase: str = Field(alias="to")
    event: str
    cause: str | None = None
    reason: Why | None = None


class Event(Schema):
    """One entry of the event feed; ``seq`` grows for ever, across restarts."""

    seq: int
    at: Time
    kind: str
    subject: str
    text: str


class Logs(Schema):
    """A piece of a log. ``offset`` = where the next piece begins; ``launch`` null = the daemon's own log.

    ``truncated`` = older lines exist that were not asked for or did not fit.
    """

    model: str | None
    launch: int | None
    offset: int
    truncated: bool
    lines: list[str]


class Page(Schema, Generic[T]):
    """A part of a list. ``after`` is opaque: send it back as ``?after=`` to go on from here."""

    items: list[T]
    has_more: bool
    after: str | None


# --- actions -----------------------------------------------------------------------------------------------------------


class Progress(Schema):
    """Where a running action stands; ``eta_s`` = seconds left, when known."""

    phase: str
    elapsed_s: float
    eta_s: float | None = None
    text: str = ""


class ActionError(Schema):
    """Why an action failed; ``log_line`` is the decisive line of the engine's log."""

    code: str
    message: str
    fix: str = ""
    log_line: str | None = None


class SideEffect(Schema):
    """What the action did to another model."""

    model: str
    action: str


class Action(Schema):
    """A verb on a model. ``changed`` false = it was there already; ``interrupted`` = requests that were cut short."""

    id: str
    verb: Verb
    model: str
    attached: bool = False
    by: str
    state: Literal["running", "done", "failed"]
    created_at: Time
    finished_at: Time | None = None
    from_phase: str | None = None
    to_phase: str | None = None
    level: int | None = None
    devices: list[str] = []
    changed: bool | None = None
    freed_bytes: int | None = None
    taken_bytes: int | None = None
    duration_s: float | None = None
    interrupted: int = 0
    also: list[SideEffect] = []
    progress: Progress | None = None
    error: ActionError | None = None


# --- the daemon itself ---------------------------------------------------------------------------------------------------


class Ready(Schema):
    """``alive`` = the control loop turns; ``ready`` = chat can be served."""

    ready: bool
    alive: bool
    degraded: list[Degraded] = []


class VersionInfo(Schema):
    """Who answers."""

    version: str
    api: Literal["v1"] = "v1"
    pid: int
    started_at: Time


class Problem(Schema):
    """An error, RFC 9457 (application/problem+json), with our stable ``code`` and what to do (``fix``)."""

    type: str
    title: str
    status: int
    detail: str
    instance: str | None = None
    code: str
    fix: str = ""
