"""The front of the scheduler: implements readiness for the data plane and hears what becomes of holds, leases and actions."""

import asyncio
import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from scheduler.domain.errors import HotseatError, NotFound, Temporary
from scheduler.domain.ids import CauseId, DeviceId, HoldId, LeaseId, ModelName
from scheduler.domain.lease import Hold, Lease, Outcome
from scheduler.domain.model import ModelSpec
from scheduler.orchestrator.effects import CutLeases, FinishAction, GrantLease, RefuseHold, Tell
from scheduler.orchestrator.estimates import eta_seconds
from scheduler.orchestrator.events import Happening, HoldCancelled, LeaseReleased, LeaseRequested
from scheduler.orchestrator.readiness import Grant, Listed, Standing, Ticket, Usage, Want
from scheduler.orchestrator.silence import Pulses
from scheduler.orchestrator.state import State
from scheduler.orchestrator.supervisor import Supervisor
from scheduler.orchestrator.usage import UsageBook
from scheduler.ports.clock import Clock

_ANSWERED = frozenset({Outcome.OK, Outcome.ENGINE_ERROR})
_CUT_SHORT = frozenset({Outcome.ABORTED, Outcome.ENGINE_LOST})


@dataclass(slots=True)
class Listeners:
    """Who hears about things that are not answers: filled in by the daemon."""

    finished: Callable[[FinishAction], None] = lambda _e: None
    told: Callable[[Tell], None] = lambda _e: None
    measure: Callable[[tuple[DeviceId, ...]], None] = lambda _d: None
    cut: Callable[[CauseId, int], None] = lambda _c, _n: None


class HeldTicket:
    """A request in the hold queue."""

    def __init__(self, desk: "ReadinessDesk", hold: Hold) -> None:
        self._desk = desk
        self._hold = hold
        self._taken = False
        self.answer: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        self.answer.add_done_callback(lambda f: f.cancelled() or f.exception())  # a refusal nobody fetches is no alarm

    def standing(self) -> Standing:
        """Position among the holds of its model, and the wait still expected."""
        return self._desk.standing(self._hold)

    async def granted(self) -> Grant:
        """See Ticket."""
        grant = await asyncio.shield(self.answer)
        self._taken = True
        return grant

    def cancel(self) -> None:
        """See Ticket."""
        if self._taken:
            return
        self._taken = True
        if self.answer.done() and not self.answer.cancelled() and self.answer.exception() is None:
            self._desk.release(self.answer.result().lease, Outcome.CLIENT_GONE, None)
        else:
            self.answer.cancel()
            self._desk.forget(self._hold.id)


class ReadinessDesk:
    """Implements Readiness and the applier's Desk. Lives on the event loop; nothing here blocks."""

    def __init__(self, state: State, clock: Clock, listeners: Listeners) -> None:
        self._state = state
        self._clock = clock
        self.listeners = listeners
        self.post: Callable[[Happening], None] = lambda _e: None  # set once the control loop exists
        self._tickets: dict[HoldId, HeldTicket] = {}
        self._leases: dict[LeaseId, Lease] = {}
        self._cuts: dict[LeaseId, asyncio.Event] = {}
        self._cut_by: dict[LeaseId, CauseId] = {}
        self._next_hold = 1
        self._names: dict[str, ModelName] = {}
        self._names_of: dict[ModelName, ModelSpec] | None = None
        self.usage = UsageBook(clock)
        self.pulses = Pulses(clock)
        self.closing = False
        self._since = int(clock.wall())

    # --- readiness --------------------------------------------------------------------------------------------------

    def resolve(self, name: str) -> Listed:
        """The model behind a name or alias."""
        found = self._index().get(name)
        if found is None:
            near = difflib.get_close_matches(name, [n for n, m in self._index().items() if not self._state.models[m].unlisted], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise NotFound(f"no model named {name!r}{hint}", code="model_not_found", fix="GET /v1/models lists what there is")
        return self._listed(self._state.models[found])

    def listed(self) -> list[Listed]:
        """All models, in registry order."""
        return [self._listed(spec) for spec in self._state.models.values()]

    def ask(self, want: Want) -> Ticket:
        """Join the hold queue."""
        if self.closing:
            raise Temporary("the daemon is shutting down", code="model_starting", retry_after_s=5.0, fix="retry in a moment")
        spec = self._state.models.get(want.model)
        auto = spec is None or spec.max_wait_s is None
        most = self._state.policy.auto_max_wait_s if spec is None or spec.max_wait_s is None else spec.max_wait_s
        deadline = min(want.deadline_s, want.arrived_s + most)
        hold = Hold(
            id=HoldId(self._next_hold),
            model=want.model,
            arrived_s=want.arrived_s,
            deadline_s=deadline,
            limit_s=want.deadline_s if auto else deadline,
            model_class=want.model_class,
            principal=want.principal,
            second_try=want.second_try,
        )
        self._next_hold += 1
        ticket = self._tickets[hold.id] = HeldTicket(self, hold)
        self.post(LeaseRequested(at_s=self._clock.monotonic(), hold=hold))
        return ticket

    def release(self, lease: LeaseId, outcome: Outcome, usage: Usage | None) -> None:
        """End a lease; idempotent."""
        found = self._leases.pop(lease, None)
        self._cuts.pop(lease, None)
        cause = self._cut_by.pop(lease, None)
        if found is None:
            return
        if cause is not None and outcome in _CUT_SHORT:  # what ends by itself meanwhile is whole
            self.listeners.cut(cause, 1)
        self.pulses.leave(found.instance, answered=outcome in _ANSWERED)
        self.usage.add(found, outcome, usage)
        self.post(LeaseReleased(at_s=self._clock.monotonic(), lease=lease, outcome=outcome))

    # --- for tickets ------------------------------------------------------------------------------------------------

    def standing(self, hold: Hold) -> Standing:
        """Where a hold stands now."""
        ahead = sum(1 for h in self._state.holds_of(hold.model) if h.id < hold.id)
        reason = self._state.hold_reasons.get(hold.model)
        current = self._state.holds.get(hold.id, hold)
        return Standing(position=ahead + 1, eta_s=eta_seconds(self._state, current), reason=reason.text if reason else "")

    def forget(self, hold: HoldId) -> None:
        """The client is gone."""
        self._tickets.pop(hold, None)
        self.post(HoldCancelled(at_s=self._clock.monotonic(), hold=hold))

    # --- the applier's desk -----------------------------------------------------------------------------------------

    def granted(self, effect: GrantLease, supervisor: Supervisor) -> None:
        """Hand out a lease, or give it back when its caller is gone."""
        lease = effect.lease
        self._leases[lease.id] = lease
        self.pulses.enter(lease.instance)
        ticket = self._tickets.pop(effect.hold, None)
        if ticket is None or ticket.answer.done():
            self.release(lease.id, Outcome.CLIENT_GONE, None)
            return
        endpoint = supervisor.endpoint()
        cut = self._cuts[lease.id] = asyncio.Event()
        ticket.answer.set_result(
            Grant(
                lease=lease.id,
                instance=lease.instance,
                base_url=endpoint.base_url,
                served_model=endpoint.served_model,
                api_key=endpoint.api_key,
                waited_s=lease.waited_s,
                woke=lease.woke,
                cut=cut,
                heard=partial(self.pulses.hear, lease.instance),
            )
        )

    def refused(self, effect: RefuseHold) -> None:
        """Answer with an error."""
        ticket = self._tickets.pop(effect.hold, None)
        if ticket is not None and not ticket.answer.done():
            ticket.answer.set_exception(effect.error)

    def cut(self, effect: CutLeases) -> None:
        """Tell the relays to end these requests with an error event."""
        for lease in effect.leases:
            if lease in self._cuts:
                self._cuts[lease].set()
                self._cut_by.setdefault(lease, effect.cause)

    def cut_all(self, cause: CauseId) -> None:
        """The daemon ends, and so must whatever still runs: with an error event, not with a broken connection."""
        self.cut(CutLeases(leases=tuple(self._cuts), cause=cause))

    def finished(self, effect: FinishAction) -> None:
        """An action has ended."""
        self.listeners.finished(effect)

    def told(self, effect: Tell) -> None:
        """A line of the event feed."""
        self.listeners.told(effect)

    def measure(self, devices: tuple[DeviceId, ...]) -> None:
        """Somebody waits for bytes."""
        self.listeners.measure(devices)

    def refuse_all(self, error: HotseatError) -> None:
        """The daemon stops: everybody who still waits gets ``error``."""
        self.closing = True
        for hold, ticket in list(self._tickets.items()):
            if not ticket.answer.done():
                ticket.answer.set_exception(error)
            self.forget(hold)

    @property
    def leases(self) -> dict[LeaseId, Lease]:
        """Requests in flight."""
        return self._leases

    # --- names ------------------------------------------------------------------------------------------------------

    def _index(self) -> dict[str, ModelName]:
        if self._names_of is not self._state.models:  # the reducer replaces the dict when the registry changes
            names = {alias: spec.name for spec in self._state.models.values() for alias in spec.aliases}
            self._names = {**names, **{str(name): name for name in self._state.models}}
            self._names_of = self._state.models
        return self._names

    def _listed(self, spec: ModelSpec) -> Listed:
        return Listed(
            name=spec.name,
            aliases=spec.aliases,
            description=spec.description,
            unlisted=spec.unlisted,
            max_wait_s=spec.max_wait_s,
            model_class=spec.model_class,
            created_at=self._since,
        )
