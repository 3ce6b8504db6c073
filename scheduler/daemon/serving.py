"""Whether chat can be served: what /readyz says."""

from collections.abc import Iterator

from scheduler.domain.ids import DeviceId, ModelName, instance_id
from scheduler.domain.instance import Instance, Phase
from scheduler.domain.model import ModelSpec
from scheduler.domain.reasons import Reason
from scheduler.orchestrator.state import State
from scheduler.orchestrator.unfit import never_fits
from scheduler.orchestrator.view import target
from scheduler.planner.feasible import fits_alone

#: A request is answered from here, or soon is, whatever the devices and the store do.
_UP = frozenset({Phase.AWAKE, Phase.LAUNCHING, Phase.WAKING})


def can_serve(state: State) -> bool:
    """Whether a request for some model would be answered: it is awake, or could be brought there. True without models."""
    fresh = {device for device in state.devices if state.fresh_sample(device) is not None}
    return not state.models or any(_serves(state, spec, fresh) for spec in state.models.values())


def why_none(state: State) -> Iterator[tuple[ModelName, Reason]]:
    """Of enabled models that do not serve and for which nothing can be waited: why not. The rest waits for what is degraded."""
    for spec in state.models.values():
        instance = state.instances.get(instance_id(spec.name)) or Instance(id=instance_id(spec.name))
        if not spec.enabled or instance.phase in _UP:
            continue
        reason = instance.reason if _given_up(state, instance) else never_fits(state, spec.name)
        if reason is not None:
            yield spec.name, reason


def _serves(state: State, spec: ModelSpec, fresh: set[DeviceId]) -> bool:
    iid = instance_id(spec.name)
    instance = state.instances.get(iid) or Instance(id=iid)
    if not spec.enabled:
        return False
    if instance.phase in _UP:
        return True
    # Every start and wake is written down first, and nothing grows on a device that is not measured.
    return state.store_ok and bool(fresh) and not _given_up(state, instance) and _has_a_seat(state, spec, fresh)


def _given_up(state: State, instance: Instance) -> bool:
    """Failed for good, and not yet due for the try that a request gets now and then."""
    due = state.facts_of(instance.model).half_open_at_s
    return instance.phase is Phase.FAILED and due is not None and state.now_s < due


def _has_a_seat(state: State, spec: ModelSpec, fresh: set[DeviceId]) -> bool:
    """Whether it would fit somewhere measured, with everything else of ours away: those others can be made to leave."""
    wanted = target(state, spec.name)
    return any(fresh.issuperset(seat) and fits_alone(wanted.need_bytes, (state.devices[d] for d in seat)) for seat in wanted.sets)
