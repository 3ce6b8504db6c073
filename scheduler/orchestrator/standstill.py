"""Models that nothing can be done for: thought about again only when something changed that can matter to them.

A hundred models may wait at once, and after every event all of them are asked for. What stands between one of them and a seat is
the scene (who sits where, who is in use, what was measured), its own demand, and time. While the first two are the same and no
seat has become free by time alone, the last answer is the answer.
"""

from dataclasses import dataclass, field, replace

from scheduler.domain.ids import ModelName, instance_id
from scheduler.orchestrator.state import State, Stuck
from scheduler.orchestrator.view import Scene
from scheduler.planner.evict import NotNow
from scheduler.planner.inputs import Picture
from scheduler.planner.turns import gate_before

#: Seconds after which an answer is worked out anew whatever happened: its sentence tells how long a turn lasts yet.
STANDS_S = 1.0


@dataclass(slots=True)
class Standstill:
    """The answers that still stand in a scene. Valid as long as its scene."""

    scene: Scene
    _services: dict[ModelName, float] = field(init=False)
    _sooner_s: dict[int, float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        state, likeness = self.scene.state, self.scene.likeness()
        if likeness != state.stuck_in:
            state.stuck_in = likeness
            state.stuck.clear()
        self._services = self.scene.services()

    def recall(self, model: ModelName) -> NotNow | None:
        """The answer that stands for ``model``; None = think."""
        state = self.scene.state
        known = state.stuck.get(model)
        if known is None or known.wants is not state.demand(model) or known.given != _given(state, model):
            return None
        sooner_s = self._sooner(known)
        if state.now_s >= known.until_s - sooner_s or state.now_s >= known.noted_s + STANDS_S:
            return None
        if known.answer.retry_at_s is None or not sooner_s:
            return known.answer
        return replace(known.answer, retry_at_s=known.answer.retry_at_s - sooner_s)

    def note(self, model: ModelName, picture: Picture, answer: NotNow) -> None:
        """Remember why nothing can be done for ``model``, and until when that stands at most."""
        state = self.scene.state
        times = [seat.free_at_s for seat in picture.seats if seat.free_at_s is not None]
        state.stuck[model] = Stuck(
            answer=answer,
            wants=state.demand(model),
            given=_given(state, model),
            noted_s=state.now_s,
            until_s=min(times, default=float("inf")),
            services=self._services,
        )

    def _sooner(self, known: Stuck) -> float:
        """Seconds by which a turn may end earlier than was thought, because requests were seen to take longer since."""
        found = self._sooner_s.get(id(known.services))
        if found is None:
            longer = max((s - known.services.get(m, s) for m, s in self._services.items()), default=0.0)
            found = self._sooner_s[id(known.services)] = gate_before(0.0, 0.0, 0.0) - gate_before(0.0, 0.0, max(0.0, longer))
        return found


def _given(state: State, model: ModelName) -> tuple[object, ...]:
    """What an answer depends on besides the scene and the demand: the model itself."""
    facts = state.facts_of(model)
    return (state.instances.get(instance_id(model)), state.models.get(model), facts.guess, facts.learned, facts.kinds)
