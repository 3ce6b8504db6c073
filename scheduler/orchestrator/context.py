"""One pass of the reducer: the state it writes and the effects it collects."""

from dataclasses import dataclass, field, replace

from scheduler.domain.claims import Claim
from scheduler.domain.errors import HotseatError, InvariantViolated
from scheduler.domain.ids import HoldId, InstanceId, LaunchId
from scheduler.domain.instance import Event, Failures, Instance, Transition, apply
from scheduler.orchestrator.effects import Effect, FinishAction, Journal, RefuseHold, SaveInstance, Tell
from scheduler.orchestrator.state import State


@dataclass(slots=True)
class Context:
    """Passed through the reducer's rooms; nothing in it outlives the pass but the state."""

    state: State
    effects: list[Effect] = field(default_factory=list)

    @property
    def now_s(self) -> float:
        """Monotonic now."""
        return self.state.now_s

    def emit(self, effect: Effect) -> None:
        """Ask for an effect."""
        self.effects.append(effect)

    def tell(self, kind: str, subject: str, message: str, **data: object) -> None:
        """One line for the event feed."""
        self.emit(Tell(kind=kind, subject=subject, message=message, data=tuple((k, str(v)) for k, v in data.items())))

    def instance(self, iid: InstanceId) -> Instance:
        """The instance, made stopped when there is none yet."""
        found = self.state.instances.get(iid)
        return found if found is not None else self.state.instances.setdefault(iid, Instance(id=iid, since_s=self.now_s))

    def transition(self, iid: InstanceId, event: Event, *, intent: bool = False) -> int:
        """Apply an event, journal it, and return its sequence number. ``intent`` = refused when it cannot be committed."""
        before = self.instance(iid)
        after = apply(before, event)
        seq = self.state.next.seq
        self.state.next.seq += 1
        self.state.instances[iid] = after
        self.state.last_seq[iid] = seq
        live = self.state.live_of(iid)
        if after.phase is not before.phase:
            live.effect_at_s = self.now_s
            live.timed = True
            live.alarmed = False
        line = Transition(
            seq=seq,
            at=self.state.wall,
            instance=iid,
            source=before.phase,
            target=after.phase,
            event=type(event).__name__,
            cause=event.cause or before.cause,
            reason=event.reason,
        )
        self.emit(Journal(transition=line, instance=after, prior=before if intent else None))
        return seq

    def set_claim(self, iid: InstanceId, claim: Claim) -> None:
        """Change a claim without a change of phase."""
        changed = replace(self.instance(iid), claim=claim)
        self.state.instances[iid] = changed
        self.emit(SaveInstance(instance=changed))

    def set_since(self, iid: InstanceId, since_s: float) -> None:
        """The present phase goes on from before a restart."""
        changed = replace(self.instance(iid), since_s=since_s)
        self.state.instances[iid] = changed
        self.emit(SaveInstance(instance=changed))

    def count_failure(self, iid: InstanceId, kind: str) -> Failures:
        """One more failure of ``kind`` (launch, sleep, wake, crash)."""
        instance = self.instance(iid)
        more = {kind: getattr(instance.failures, kind) + 1}
        failures = replace(instance.failures, **more)
        self.state.instances[iid] = replace(instance, failures=failures)
        return failures

    def set_deadline(self, iid: InstanceId, deadline_s: float | None) -> None:
        """Re-arm (or drop) the deadline of the present phase."""
        self.state.instances[iid] = replace(self.instance(iid), deadline_s=deadline_s)

    def refuse(self, hold: HoldId, error: HotseatError) -> None:
        """End a hold with an error; an operator's wake ends as a failed action."""
        found = self.state.holds.pop(hold)
        if found.action is not None:
            self.emit(FinishAction(action=found.action, ok=False, code=error.code, message=error.message, fix=error.fix))
        else:
            self.emit(RefuseHold(hold=hold, error=error))


def launch_id(instance: Instance) -> LaunchId:
    """The launch of an instance whose process exists."""
    if instance.launch is None:
        raise InvariantViolated(f"{instance.id} has no launch while {instance.phase}")
    return instance.launch
