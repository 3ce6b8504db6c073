"""The reducer alone, over a world that is a few dictionaries: no asyncio, no store, no real time.

:class:`Plain` plays events into ``reduce``, obeys every effect at once (replies come when the engine's behaviour says so),
and checks all invariants after every single event. Tests speak to it in four words: ``ask``, ``order`` (an operator),
``run`` and ``path``.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler.domain.claims import Footprint
from scheduler.domain.device import DeviceInfo, Health
from scheduler.domain.errors import HotseatError, InvariantViolated
from scheduler.domain.ids import ActionId, DeviceId, HoldId, InstanceId, LeaseId, ModelName, instance_id
from scheduler.domain.instance import DaemonRestarted, Instance, Phase, may
from scheduler.domain.lease import Hold, Outcome
from scheduler.domain.model import ModelClass, ModelSpec
from scheduler.domain.reasons import Code, Reason
from scheduler.orchestrator import effects as fx
from scheduler.orchestrator import events as ev
from scheduler.orchestrator.context import Context
from scheduler.orchestrator.invariants import Watch
from scheduler.orchestrator.reducer import next_deadline, reduce
from scheduler.orchestrator.state import Policy, State
from tests.support.behaviour import NEVER, Behaviour
from tests.support.engine_life import Ended, Stage
from tests.support.plain_machine import PlainMachine
from tests.support.world import device

EPOCH_S = 1_767_571_200.0
MOST_EVENTS = 200_000
MOST_AT_ONCE = 400  # events at one instant; more is a loop that feeds itself


@dataclass(slots=True)
class Client:
    """One request and what became of it."""

    hold: HoldId
    model: str
    asked_s: float
    for_s: float
    end: str = "held"  # held granted ok engine_lost aborted cancelled, or the code of a refusal
    waited_s: float | None = None
    lease: LeaseId | None = None
    error: HotseatError | None = None


class Plain(PlainMachine):
    """``Plain({"gpu0": 24}, a=Behaviour(...), b=...)``: devices in GiB, a model per behaviour; ``specs`` overrides fields of models."""

    def __init__(
        self,
        devices: Mapping[str, float],
        *,
        policy: Policy | None = None,
        specs: Mapping[str, Mapping[str, object]] | None = None,
        infos: Sequence[DeviceInfo] = (),
        host_limit_bytes: int = 0,
        behaviours: Mapping[str, Behaviour] | None = None,
        **more: Behaviour,
    ) -> None:
        behaviours = {**(behaviours or {}), **more}
        found = list(infos) or [device(name, gib, index=n) for n, (name, gib) in enumerate(devices.items())]
        self.policy = policy or Policy()
        super().__init__(found, behaviours, self.policy.sample_period_s)
        self.specs = {name: spec_of(name, **(specs or {}).get(name, {})) for name in behaviours}
        self.host_limit_bytes = host_limit_bytes
        self.clients: list[Client] = []
        self.finished: dict[ActionId, fx.FinishAction] = {}
        self.transitions: list[fx.Journal] = []
        self.told: list[fx.Tell] = []
        self.store_down = False
        self.broken = False  # an invariant was broken: nothing that follows means anything
        self.events = 0
        self._instant = (-1.0, 0)
        self._boot()
        self.play(self.registry())
        self.take_sample()
        self.sample_every_period()

    def _boot(self) -> None:
        self.state = State(policy=self.policy, now_s=self.now_s, wall=EPOCH_S + self.now_s, host_limit_bytes=self.host_limit_bytes)
        self.state.devices = {info.id: info for info in self.infos}
        self.watch = Watch(self.state)

    # --- what tests do ----------------------------------------------------------------------------------------------

    def ask(
        self,
        model: str,
        n: int = 1,
        *,
        for_s: float = 1.0,
        wait_s: float = 120.0,
        limit_s: float = 600.0,
        model_class: ModelClass = ModelClass.INTERACTIVE,
        second_try: bool = False,
        arrived_s: float | None = None,
        principal: str = "local",
    ) -> list[Client]:
        """``n`` requests for ``model`` arrive now, each running ``for_s`` once granted."""
        new = []
        for _ in range(n):
            client = Client(HoldId(len(self.clients) + 1), model, self.now_s, for_s)
            self.clients.append(client)
            new.append(client)
            hold = Hold(
                id=client.hold,
                model=ModelName(model),
                arrived_s=self.now_s if arrived_s is None else arrived_s,
                deadline_s=self.now_s + min(wait_s, limit_s),
                limit_s=self.now_s + limit_s,
                model_class=model_class,
                second_try=second_try,
                principal=principal,
            )
            self.play(ev.LeaseRequested(at_s=self.now_s, hold=hold))
        return new

    def cancel(self, client: Client) -> None:
        """The client goes away."""
        if client.end == "held":
            client.end = "cancelled"
            self.play(ev.HoldCancelled(at_s=self.now_s, hold=client.hold))
        elif client.end == "granted":
            self._release(client, Outcome.CLIENT_GONE)

    def order(self, verb: str, model: str, *, level: int | None = None, force: bool = False, patience_s: float = 3600.0) -> ActionId:
        """An operator's action; its end is in ``finished``."""
        action = ActionId(f"a{next(self._serial)}")
        name = ModelName(model)
        self.play(ev.Asked(at_s=self.now_s, action=action, verb=verb, model=name, level=level, force=force, patience_s=patience_s))
        return action

    def configure(self, **changes: Mapping[str, object] | None) -> None:
        """Change models' fields; None removes a model."""
        for name, fields in changes.items():
            if fields is None:
                self.specs.pop(name, None)
            elif name in self.specs:
                self.specs[name] = replace(self.specs[name], **fields)  # type: ignore[arg-type]
            else:
                self.specs[name] = spec_of(name, **fields)
        self.play(self.registry())

    def registry(self) -> ev.ModelsChanged:
        """The registry as it is now."""
        names = {ModelName(name): self.behaviours.get(name, Behaviour()) for name in self.specs}
        guesses: dict[ModelName, Footprint] = {name: knobs.estimate() for name, knobs in names.items()}
        kinds = tuple(dict.fromkeys(info.kind for info in self.infos))
        return ev.ModelsChanged(
            at_s=self.now_s,
            models={spec.name: spec for spec in self.specs.values()},
            levels={name: knobs.levels for name, knobs in names.items()},
            guesses=guesses,
            kinds=dict.fromkeys(names, kinds),
        )

    def crash(self, model: str, code: Code = Code.CRASHED) -> None:
        """The engine of ``model`` ends by itself."""
        proc = self.procs.get(instance_id(ModelName(model)))
        if proc is not None:
            proc.life.advance(self.now_s)
            proc.life.end(Ended(signal=11, code=code, text=f"pretended {code.value}"))
            self.ended(instance_id(ModelName(model)), proc)

    def ail(self, device: str, health: Health) -> None:
        """A device is lost, falls ill, or (OK) is well again; seen at once."""
        self.around.ill[DeviceId(device)] = health
        self.take_sample()

    def vanish(self, device: str) -> None:
        """A device is not in the list any more."""
        gone = DeviceId(device)
        for info in [info for info in self.infos if info.id == gone]:
            self.around.absent[gone] = info
            self.infos.remove(info)
            self._list_again(info.kind)

    def appear(self, device: str) -> None:
        """One that vanished is there again."""
        info = self.around.absent.pop(DeviceId(device), None)
        if info is not None:
            self.infos.append(info)
            self._list_again(info.kind)

    def _list_again(self, kind: str) -> None:
        self.play(ev.DevicesChanged(at_s=self.now_s, kind=kind, devices=tuple(info for info in self.infos if info.kind == kind)))
        self.take_sample()

    def break_store(self) -> None:
        """From now on no row is taken."""
        self.store_down = True

    def mend_store(self) -> None:
        """Rows are taken again."""
        self.store_down = False
        self.later(0.0, lambda: self.play(ev.StoreRecovered(at_s=self.now_s)))  # behind the failures that are on their way
        self.run(0.0)

    def restart(self) -> None:
        """A new daemon finds the rows of the old one: everything that only lived in memory is gone."""
        old = self.state
        self._boot()
        self._heap = []
        self._measuring = False
        self.state.now_s, self.state.wall = self.now_s, EPOCH_S + self.now_s
        self.state.next = old.next
        for client in self.clients:
            if client.end in ("held", "granted"):
                client.end = "daemon_gone"
        self.state.instances = dict(old.instances)
        for name, facts in old.facts.items():
            self.state.facts_of(name).learned = facts.learned
            self.state.facts_of(name).archive = facts.archive
            self.state.facts_of(name).learned_kind = facts.learned_kind
        for instance in old.instances.values():
            if instance.has_process:
                live = self.state.live_of(instance.id)
                live.fingerprint, live.effect_at_s = old.live_of(instance.id).fingerprint, instance.since_s
                live.kv_bytes = old.live_of(instance.id).kv_bytes  # from the launch record
                live.launched_at_s = instance.since_s if instance.phase is Phase.LAUNCHING else None
        effects = self._resume_all()
        self.watch = Watch(self.state)
        self.play(self.registry())
        self.take_sample()
        for effect in effects:
            self._carry_out(effect)
        for iid, proc in self.procs.items():
            proc.stopping = False
            self.arm(iid, proc)
        self.sample_every_period()

    def _resume_all(self) -> list[fx.Effect]:
        """As recovery does: look at what may live, go on with what was being stopped."""
        ctx = Context(self.state)
        for instance in list(self.state.instances.values()):
            if not instance.has_process:
                continue
            reason = Reason(Code.RESTARTED, f"the daemon restarted while it was {instance.phase}")
            if may(instance, DaemonRestarted):
                deadline = self.now_s + self.policy.probe_timeout_s
                ctx.transition(instance.id, DaemonRestarted(at_s=self.now_s, reason=reason, deadline_s=deadline))
            elif instance.phase is Phase.UNKNOWN:
                self.state.instances[instance.id] = replace(instance, reason=reason)
            seq, launch = self.state.last_seq.get(instance.id, 0), instance.launch
            assert launch is not None
            if self.state.instances[instance.id].phase is Phase.STOPPING:
                ctx.emit(fx.Stop(instance=instance.id, launch=launch, seq=seq, kill=False))
            else:
                started = Phase.LAUNCHING in (instance.phase, instance.before)
                ctx.emit(fx.Find(instance=instance.id, launch=launch, seq=seq, started_before=started))
        return ctx.effects

    # --- what tests see ---------------------------------------------------------------------------------------------

    def instance(self, model: str) -> Instance:
        """The instance of a model."""
        iid = instance_id(ModelName(model))
        return self.state.instances.get(iid) or Instance(id=iid)

    def phase(self, model: str) -> str:
        """Its phase."""
        return self.instance(model).phase.value

    def path(self, model: str) -> str:
        """All phases it went through, oldest first."""
        lines = [j.transition for j in self.transitions if j.transition.instance == instance_id(ModelName(model))]
        return " ".join([line.target.value for line in lines if line.target is not line.source])

    def count(self, what: str, model: str = "") -> int:
        """How often ``what`` (Launch, Sleep, Wake, Stop, Kill) was done."""
        return sum(1 for _, did, name in self.did if did == what and model in ("", name))

    def when(self, what: str, model: str) -> list[float]:
        """When it was done."""
        return [at for at, did, name in self.did if did == what and name == model]

    def ends(self, model: str = "") -> list[str]:
        """How requests ended, in order of arrival."""
        return [c.end for c in self.clients if model in ("", c.model)]

    def why(self, model: str) -> Code:
        """Why its waiters wait."""
        return self.state.hold_reasons[ModelName(model)].code

    @property
    def quiet(self) -> bool:
        """Nothing is under way and nobody waits."""
        state = self.state
        stable = {Phase.STOPPED, Phase.AWAKE, Phase.ASLEEP, Phase.FAILED}
        still = all(i.phase in stable for i in state.instances.values())
        return still and not (state.holds or state.leases or state.moves or state.wishes)

    # --- time -------------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now_s + seconds
        while self._step(end):
            pass
        self.now_s = end
        self.play(ev.Tick(at_s=end))

    def run_until(self, seen: Callable[[], bool], within_s: float = 3600.0) -> None:
        """Let time pass until ``seen``; AssertionError when it never is."""
        end = self.now_s + within_s
        while not seen():
            if not self._step(end):
                raise AssertionError(f"not seen within {within_s:g} s: {self.picture()}")

    def settle(self, within_s: float = 3600.0) -> None:
        """Let time pass until all is quiet."""
        self.run_until(lambda: self.quiet, within_s)

    def picture(self) -> str:
        """The state in one line, for messages."""
        state = self.state
        phases = {i.id: f"{i.phase.value}>{i.goal}" for i in state.instances.values()}
        waiting = {name: reason.text for name, reason in state.hold_reasons.items() if state.holds_of(name)}
        counts = f"{len(state.holds)} holds, {len(state.leases)} leases"
        return f"at {self.now_s:g}: {phases}; {counts}; moves {list(state.moves.values())}; wishes {state.wishes}; why {waiting}"

    def _step(self, end_s: float) -> bool:
        """The next thing that happens, if it does by ``end_s``."""
        alarm = next_deadline(self.state)
        due = self._heap[0][0] if self._heap else NEVER
        if alarm is not None and alarm < due and alarm <= end_s:
            self.now_s = max(self.now_s, alarm)
            self.play(ev.Tick(at_s=self.now_s))
            return True
        if due > end_s:
            return False
        at_s, _, do = heapq.heappop(self._heap)
        self.now_s = max(self.now_s, at_s)
        do()
        return True

    # --- the reducer ------------------------------------------------------------------------------------------------

    def play(self, event: ev.Happening) -> None:
        """One event: reduce, check, obey."""
        self.events += 1
        at, count = self._instant
        self._instant = (self.now_s, count + 1 if at == self.now_s else 1)
        if self.events > MOST_EVENTS or self._instant[1] > MOST_AT_ONCE + 4 * len(self.clients):
            self.broken = True
            raise AssertionError(f"too many events, the last one {event}: {self.picture()}")
        try:
            effects = reduce(self.state, event, EPOCH_S + self.now_s)
            self.watch.effects(effects)
            self.watch.observe(event, self.state)
        except (InvariantViolated, AssertionError) as error:
            self.broken = True
            raise AssertionError(f"{error}\n{self.picture()}") from error
        refused = self._refuse_rows(effects)
        for effect in effects:
            if not (isinstance(effect, fx.EngineEffect) and not isinstance(effect, fx.Stop) and effect.seq in refused):
                self._carry_out(effect)

    def _refuse_rows(self, effects: Sequence[fx.Effect]) -> set[int]:
        """As the applier does: a broken store refuses intents; stops are carried out all the same."""
        rows = [e for e in effects if isinstance(e, fx.Journal | fx.SaveInstance | fx.SaveMove)]
        if not self.store_down or not rows:
            return set()
        stops = {e.seq for e in effects if isinstance(e, fx.Stop)}
        intents = [e for e in rows if isinstance(e, fx.Journal) and e.prior is not None and e.transition.seq not in stops]
        if self.state.store_ok:
            self.later(0.0, lambda: self.play(ev.StoreFailed(at_s=self.now_s, code="store_full", message="disk full", fix="free space")))
        for intent in intents:
            self.later(0.0, lambda i=intent: self.play(ev.IntentRefused(at_s=self.now_s, seq=i.transition.seq, prior=i.prior)))  # type: ignore[misc]
        return {i.transition.seq for i in intents}

    def _carry_out(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Journal():
                self.transitions.append(effect)
            case fx.Launch() | fx.Sleep() | fx.Wake() | fx.Stop() | fx.Find() | fx.CheckNow() | fx.WatchIdle():
                self.command(effect)
            case fx.GrantLease():
                self._granted(effect)
            case fx.RefuseHold():
                client = self.clients[effect.hold - 1]
                client.end, client.error, client.waited_s = effect.error.code, effect.error, self.now_s - client.asked_s
            case fx.CutLeases():
                for client in [c for c in self.clients if c.lease in effect.leases and c.end == "granted"]:
                    self.later(0.1, lambda c=client: self._release(c, Outcome.ABORTED))  # type: ignore[misc]
            case fx.Measure():
                self.measure_soon()
            case fx.Tell():
                self.told.append(effect)
            case fx.FinishAction():
                self.finished[effect.action] = effect
            case _:
                pass

    # --- clients ----------------------------------------------------------------------------------------------------

    def _granted(self, effect: fx.GrantLease) -> None:
        client = self.clients[effect.hold - 1]
        client.end, client.lease, client.waited_s = "granted", effect.lease.id, self.now_s - client.asked_s
        proc = self.procs.get(effect.lease.instance)
        if proc is None or proc.life.stage is Stage.ENDED:
            self.later(0.0, lambda: self._release(client, Outcome.ENGINE_LOST))
        elif proc.life.stage is not Stage.AWAKE:
            raise AssertionError(f"{client.model} was granted while its engine is {proc.life.stage}")
        elif proc.life.speaks_garbage:
            raise AssertionError(f"{client.model} was granted although its engine speaks nonsense")
        else:
            self.later(client.for_s, lambda: self._release(client, Outcome.OK))

    def lost(self, iid: InstanceId) -> None:
        """Requests inside an engine that has ended are lost."""
        for client in self.clients:
            lease = self.state.leases.get(client.lease) if client.lease is not None else None
            if client.end == "granted" and lease is not None and lease.instance == iid:
                self.later(0.0, lambda c=client: self._release(c, Outcome.ENGINE_LOST))  # type: ignore[misc]

    def _release(self, client: Client, outcome: Outcome) -> None:
        if client.end != "granted" or client.lease is None:
            return
        client.end = outcome.value
        self.play(ev.LeaseReleased(at_s=self.now_s, lease=client.lease, outcome=outcome))


def spec_of(name: str, **fields: object) -> ModelSpec:
    """A model of the pretended engine."""
    base = ModelSpec(name=ModelName(name), engine="pretended", model=f"/models/{name}", min_awake_s=0.0)
    return replace(base, **fields)  # type: ignore[arg-type]
