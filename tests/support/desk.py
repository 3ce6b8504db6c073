"""An in-memory Readiness that obeys the protocol of scheduler/orchestrator/readiness.py, and checks its caller.

Models are awake (granted at once), asleep (held until ``wake``) or refused. Everything that happens is recorded;
``settled`` says whether each lease was released exactly once and each ticket ended.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from scheduler.domain.errors import HotseatError, NotFound
from scheduler.domain.ids import LeaseId, ModelName, instance_id
from scheduler.domain.lease import Outcome
from scheduler.domain.model import ModelClass
from scheduler.orchestrator.readiness import Grant, Listed, Standing, Usage, Want
from scheduler.ports.clock import Clock


@dataclass
class Model:
    """One model of the desk and how it behaves."""

    listed: Listed
    base_url: str = ""
    served_model: str = ""
    api_key: str = ""
    awake: bool = True
    refusal: HotseatError | None = None  # raised by ``ask``
    next_urls: list[str] = field(default_factory=list)  # for the first grants, before ``base_url``
    queue: list["DeskTicket"] = field(default_factory=list)
    eta_s: float | None = 4.1


@dataclass(frozen=True)
class Released:
    lease: LeaseId
    outcome: Outcome
    usage: Usage | None


class DeskTicket:
    """Ended by exactly one of granted, refused, cancelled."""

    def __init__(self, desk: "Desk", model: Model, want: Want) -> None:
        self.want = want
        self.cancelled = False
        self.collected = False
        self._desk = desk
        self._model = model
        self._grant: Grant | None = None
        self._error: HotseatError | None = None
        self._ended = asyncio.Event()

    def standing(self) -> Standing:
        place = self._model.queue.index(self) + 1 if self in self._model.queue else 1
        return Standing(position=place, eta_s=self._model.eta_s, reason="waiting_move")

    async def granted(self) -> Grant:
        if not self._ended.is_set():
            await self._ended.wait()
        if self._error is not None:
            raise self._error
        assert self._grant is not None, "granted() awaited after cancel()"
        self.collected = True
        return self._grant

    def cancel(self) -> None:
        if self.collected or self.cancelled or self._error is not None:
            return
        self.cancelled = True
        if self._grant is not None:
            self._desk.release(self._grant.lease, Outcome.CLIENT_GONE, None)
        elif self in self._model.queue:
            self._model.queue.remove(self)
        self._desk.changed()

    def end(self, result: Grant | HotseatError) -> None:
        if isinstance(result, HotseatError):
            self._error = result
        else:
            self._grant = result
        self._ended.set()


class Desk:
    """A Readiness for tests and benchmarks."""

    ticket_class = DeskTicket

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._models: dict[str, Model] = {}
        self._names: dict[str, Model] = {}
        self._open: dict[LeaseId, Grant] = {}
        self._next_lease = 0
        self._waiters: list[asyncio.Future[None]] = []
        self.wants: list[Want] = []
        self.tickets: list[DeskTicket] = []
        self.released: list[Released] = []
        self.keep_records = True
        self.heard = 0  # how often something came from an engine

    # --- set-up ---------------------------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        base_url: str = "",
        *,
        aliases: tuple[str, ...] = (),
        served_model: str = "",
        api_key: str = "",
        awake: bool = True,
        unlisted: bool = False,
        max_wait_s: float | None = None,
        model_class: ModelClass = ModelClass.INTERACTIVE,
    ) -> Model:
        listed = Listed(
            name=ModelName(name),
            aliases=aliases,
            description=f"model {name}",
            unlisted=unlisted,
            max_wait_s=max_wait_s,
            model_class=model_class,
            created_at=1_790_000_000,
        )
        model = Model(listed, base_url, served_model or name, api_key, awake)
        self._models[name] = model
        for key in (name, *aliases):
            self._names[key] = model
        return model

    def wake(self, name: str) -> None:
        """Grant everybody who waits for the model, in order."""
        model = self._models[name]
        model.awake = True
        for ticket in model.queue:
            ticket.end(self._grant(model, ticket.want, woke=True))
        model.queue.clear()
        self.changed()

    def refuse(self, name: str, error: HotseatError) -> None:
        """End everybody's wait for the model with an error."""
        for ticket in self._models[name].queue:
            ticket.end(error)
        self._models[name].queue.clear()
        self.changed()

    def cut(self) -> None:
        """Tell the relays to end every request in flight now."""
        for grant in self._open.values():
            assert grant.cut is not None
            grant.cut.set()

    # --- what tests look at ---------------------------------------------------------------------------------------

    @property
    def leases(self) -> int:
        """Leases not released yet."""
        return len(self._open)

    def held(self, name: str) -> int:
        return len(self._models[name].queue)

    def settled(self) -> bool:
        """Nobody waits and no lease is open."""
        return not self._open and all(not model.queue for model in self._models.values())

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Wait until ``condition`` holds; it is looked at whenever something happens at the desk."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                waiter = asyncio.get_running_loop().create_future()
                self._waiters.append(waiter)
                await waiter

    def changed(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- the protocol ---------------------------------------------------------------------------------------------

    def resolve(self, name: str) -> Listed:
        model = self._names.get(name)
        if model is None:
            near = min(self._names, default="none", key=lambda known: abs(len(known) - len(name)))
            raise NotFound(f"There is no model {name!r}; did you mean {near!r}?", code="model_not_found")
        return model.listed

    def listed(self) -> list[Listed]:
        return [model.listed for model in self._models.values()]

    def ask(self, want: Want) -> DeskTicket:
        model = self._models[want.model]
        if model.refusal is not None:
            raise model.refusal
        ticket = self.ticket_class(self, model, want)
        if self.keep_records:
            self.wants.append(want)
            self.tickets.append(ticket)
        if model.awake:
            ticket.end(self._grant(model, want, woke=False))
        else:
            model.queue.append(ticket)
        self.changed()
        return ticket

    def release(self, lease: LeaseId, outcome: Outcome, usage: Usage | None) -> None:
        assert lease in self._open, f"lease {lease} released twice, or never granted"
        del self._open[lease]
        if self.keep_records:
            self.released.append(Released(lease, outcome, usage))
        self.changed()

    def _hear(self) -> None:
        self.heard += 1

    def _grant(self, model: Model, want: Want, *, woke: bool) -> Grant:
        self._next_lease += 1
        grant = Grant(
            lease=LeaseId(self._next_lease),
            instance=instance_id(model.listed.name),
            base_url=model.next_urls.pop(0) if model.next_urls else model.base_url,
            served_model=model.served_model,
            api_key=model.api_key,
            waited_s=self.clock.monotonic() - want.arrived_s,
            woke=woke,
            cut=asyncio.Event(),
            heard=self._hear,
        )
        self._open[grant.lease] = grant
        return grant
