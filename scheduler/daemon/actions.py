"""Operators' actions: numbered, watched, and kept for a while after they ended."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast, get_args

from scheduler.api.schemas import Action, ActionError, Progress, SideEffect, Verb
from scheduler.domain.claims import Source
from scheduler.domain.errors import NotFound
from scheduler.domain.ids import ACTION_CAUSE, ActionId, CauseId, ModelName, MoveId, instance_id, model_of
from scheduler.domain.instance import Instance, Phase
from scheduler.domain.plan import Move, MoveState
from scheduler.domain.reasons import Code
from scheduler.orchestrator.effects import FinishAction
from scheduler.orchestrator.estimates import eta_seconds
from scheduler.orchestrator.state import State
from scheduler.ports.clock import Clock
from scheduler.store.actions import StoredAction

KEPT = 1000


@dataclass(slots=True)
class _Entry:
    id: ActionId
    verb: Verb
    model: ModelName
    by: str
    created_at: float
    created_s: float
    before: Instance
    level: int | None
    held_bytes: int
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    result: FinishAction | None = None
    finished_at: float | None = None
    duration_s: float | None = None
    after: Instance | None = None
    grown_bytes: int = 0
    interrupted: int = 0
    also: dict[MoveId, list[SideEffect]] = field(default_factory=dict)


class ActionBook:
    """Remembers the last KEPT actions of this daemon, and ``past``: those of earlier ones, which are stored for that."""

    def __init__(
        self,
        state: State,
        clock: Clock,
        first: int,
        log_line: Callable[[ModelName], str],
        save: Callable[[StoredAction], None],
        past: Sequence[StoredAction] = (),
    ) -> None:
        self._past: dict[str, Action] = {
            action.id: _of_the_past(action) for action in past if action.model and action.verb in get_args(Verb)
        }
        self._save = save
        self._state = state
        self._clock = clock
        self._next = first
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._log_line = log_line

    def open(self, verb: Verb, model: ModelName, by: str, level: int | None) -> ActionId:
        """A new action; ``finish`` ends it."""
        action = ActionId(f"a{self._next}")
        self._next += 1
        before = self._state.instances.get(instance_id(model)) or Instance(id=instance_id(model))
        self._entries[action] = _Entry(
            id=action,
            verb=verb,
            model=model,
            by=by,
            created_at=self._clock.wall(),
            created_s=self._clock.monotonic(),
            before=before,
            level=level,
            held_bytes=self._held(model) or 0,
        )
        self._store(self._entries[action])
        for old in [e for e in self._entries.values() if e.ended.is_set()][: max(0, len(self._entries) - KEPT)]:
            del self._entries[old.id]
        return action

    def finish(self, effect: FinishAction) -> None:
        """The reducer says how it ended."""
        entry = self._entries.get(effect.action)
        if entry is None or entry.result is not None:
            return
        entry.result = effect
        entry.finished_at = self._clock.wall()
        entry.duration_s = round(self._clock.monotonic() - entry.created_s, 3)
        entry.after = self._state.instances.get(instance_id(entry.model))
        held = self._held(entry.model, guess=False)
        entry.grown_bytes = 0 if held is None else held - entry.held_bytes
        entry.ended.set()
        self._store(entry)

    def _store(self, entry: _Entry) -> None:
        result = entry.result
        told = {} if result is None else {"code": result.code, "message": result.message, "fix": result.fix}
        self._save(
            StoredAction(
                id=entry.id,
                verb=entry.verb,
                model=entry.model,
                state="running" if result is None else "done" if result.ok else "failed",
                principal=entry.by,
                created_at=entry.created_at,
                ended_at=entry.finished_at,
                result=told,
            )
        )

    def note_move(self, move: Move) -> None:
        """A move has been opened or has ended: what it does to others belongs to the action that caused it."""
        entry = self._caused_by(move.cause)
        if entry is not None:
            others = [step for step in move.steps if model_of(step.instance) != entry.model]
            done = [SideEffect(model=model_of(step.instance), action=_word(step.goal.phase)) for step in others]
            entry.also[move.id] = [] if move.state is MoveState.CANCELLED else done

    def note_cut(self, cause: CauseId, count: int) -> None:
        """``count`` requests are cut short."""
        entry = self._caused_by(cause)
        if entry is not None:
            entry.interrupted += count

    def _caused_by(self, cause: CauseId) -> _Entry | None:
        return self._entries.get(cause.removeprefix(ACTION_CAUSE)) if cause.startswith(ACTION_CAUSE) else None

    async def wait(self, action_id: str, seconds: float) -> Action:
        """The action when it has ended, or as it is after ``seconds``."""
        if action_id in self._past:
            return self._past[action_id]
        entry = self._entry(action_id)
        try:
            async with asyncio.timeout(seconds):
                await entry.ended.wait()
        except TimeoutError:
            pass
        return self.show(action_id)

    def _entry(self, action_id: str) -> _Entry:
        entry = self._entries.get(action_id)
        if entry is None:
            fix = f"the last {KEPT} actions are kept; see `hotseat events`"
            raise NotFound(f"no action {action_id!r}", code="action_not_found", fix=fix)
        return entry

    def show(self, action_id: str) -> Action:
        """The action as it stands."""
        if action_id in self._past:
            return self._past[action_id]
        entry = self._entry(action_id)
        now = self._state.instances.get(instance_id(entry.model)) or Instance(id=instance_id(entry.model))
        after = entry.after or now
        done = entry.result is not None
        return Action(
            id=entry.id,
            verb=entry.verb,
            model=entry.model,
            attached=self._state.facts_of(entry.model).attached,
            by=entry.by,
            state="running" if entry.result is None else "done" if entry.result.ok else "failed",
            created_at=entry.created_at,
            finished_at=entry.finished_at,
            from_phase=entry.before.phase.value,
            to_phase=after.phase.value if done else None,
            level=after.level,
            devices=list(after.devices or entry.before.devices),
            changed=None if not done else after.phase is not entry.before.phase or after.launch != entry.before.launch,
            freed_bytes=-entry.grown_bytes if entry.grown_bytes < 0 else None,
            taken_bytes=entry.grown_bytes if entry.grown_bytes > 0 else None,
            duration_s=entry.duration_s,
            interrupted=entry.interrupted,
            also=[effect for effects in entry.also.values() for effect in effects],
            progress=None if done else self._progress(entry, now),
            error=self._error(entry),
        )

    def _held(self, model: ModelName, *, guess: bool = True) -> int | None:
        """Bytes of a model now: what was measured in this phase, else when it was awake before, else its claim.

        None without ``guess`` where that claim is an estimate for a first start, with room to spare.
        """
        found = self._state.instances.get(instance_id(model))
        if found is None or not found.has_process:
            return 0
        measured = {d: b for d, b in self._state.measured_of(found.id).items() if self._state.samples[d].started_at_s >= found.since_s}
        facts = self._state.facts_of(model)
        if measured or found.phase is not Phase.AWAKE:
            return sum(measured.values()) if measured else found.claim.total_bytes
        if facts.learned.awake_bytes:
            return max(facts.learned.awake_bytes) * len(found.devices)
        return found.claim.total_bytes if guess or facts.footprint.source is Source.DECLARED else None

    def _progress(self, entry: _Entry, now: Instance) -> Progress:
        elapsed = self._clock.monotonic() - entry.created_s
        waits = bool(self._state.holds_of(entry.model))  # a reason outlives the hold it was for
        reason = self._state.hold_reasons.get(entry.model) if waits else None
        text = reason.text if reason is not None and now.phase is not Phase.AWAKE else ""
        hold = next((h for h in self._state.holds_of(entry.model) if h.action == entry.id), None)
        eta_s = eta_seconds(self._state, hold) if hold is not None else None
        return Progress(phase=now.phase.value, elapsed_s=round(elapsed, 1), eta_s=None if eta_s is None else round(eta_s, 1), text=text)

    def _error(self, entry: _Entry) -> ActionError | None:
        result = entry.result
        if result is None or result.ok:
            return None
        line = self._log_line(entry.model)
        return ActionError(code=result.code or "failed", message=result.message, fix=result.fix, log_line=line or None)


#: How an action ended whose daemon ended first.
LOST = {
    "code": Code.RESTARTED.value,
    "message": "the daemon ended before the action did",
    "fix": "look where the model stands with hotseat status MODEL, and ask again if it is still wanted",
}


def _of_the_past(stored: StoredAction) -> Action:
    """An action of an earlier daemon, as far as it was stored."""
    told = {**(LOST if stored.ended_at is None else {}), **(stored.result or {})}
    failed = stored.state != "done"
    text = {name: str(told.get(name) or "") for name in ("code", "message", "fix")}
    text["fix"] = text["fix"].replace("MODEL", str(stored.model))
    return Action(
        id=stored.id,
        verb=cast(Verb, stored.verb),
        model=str(stored.model),
        by=stored.principal,
        state="failed" if failed else "done",
        created_at=stored.created_at,
        finished_at=stored.ended_at,
        duration_s=None if stored.ended_at is None else round(max(0.0, stored.ended_at - stored.created_at), 3),
        error=ActionError(**{**text, "code": text["code"] or "failed"}) if failed else None,
    )


def _word(goal: Phase) -> str:
    return {Phase.ASLEEP: "slept", Phase.AWAKE: "woken"}.get(goal, "stopped")
