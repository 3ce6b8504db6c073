"""What measurements do: confirm stops and sleeps, replace guesses, raise claims that are too small."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from scheduler.domain.claims import Claim
from scheduler.domain.device import GONE, MEASURED
from scheduler.domain.ids import DeviceId, holder_of
from scheduler.domain.instance import (
    GroupGone,
    Instance,
    Phase,
    RetriesExhausted,
    SleepConfirmed,
)
from scheduler.domain.launch import LaunchEnd
from scheduler.domain.learned import Learned
from scheduler.domain.reasons import PERMANENT, Code, Reason
from scheduler.domain.units import human_bytes, human_seconds
from scheduler.orchestrator.context import Context, launch_id
from scheduler.orchestrator.effects import EndLaunch, SaveLearned
from scheduler.orchestrator.state import State
from scheduler.orchestrator.view import largest_seat, on_host, residue_of

#: A start whose memory grows by this much from one sample to the next is making progress.
PROGRESS_BYTES = 1 << 20
#: A residue that has grown by this factor, and by so many bytes at least, since the first sleep of a run is a leak.
GROWN_RESIDUE = 1.5
GROWN_BYTES = 512 << 20
#: Part of what it held that a sleep gives back at least; one that gives back less is not worth waking up from.
LEAST_FREED = 0.1
#: A model that takes more than it did at first, or when that was told last, by this factor is told of.
TELL_GROWTH = 1.15
#: A new port each launch, another device, a fresh process: the next try is right at once.
_NO_FAULT = frozenset({Code.PORT_TAKEN, Code.DEVICE_LOST, Code.OUTPUT_WRONG})
#: Failures that mean "more memory than thought": the guess is raised before the next try.
_OUT_OF_MEMORY = frozenset({Code.DEVICE_OOM, Code.HOST_OOM})


def confirm(ctx: Context, instance: Instance) -> None:
    """Complete a stop or a sleep when samples that began after it show the bytes free."""
    live = ctx.state.live_of(instance.id)
    if instance.phase is Phase.STOPPING and live.emptied_at_s is not None:
        bytes_now = measured_since(ctx, instance, live.emptied_at_s)
        if bytes_now is not None and all(b == 0 for b in bytes_now.values()):
            _gone(ctx, instance)
    elif instance.phase is Phase.FALLING_ASLEEP and live.returned_at_s is not None:
        bytes_now = all_measured_since(ctx, instance, live.returned_at_s)
        level = live.returned_level or 1
        limit = most_residue(ctx.state, instance, level)
        if bytes_now is not None and all(b <= limit for b in bytes_now.values()):
            _asleep(ctx, instance, level, bytes_now)


def _asleep(ctx: Context, instance: Instance, level: int, bytes_now: Mapping[DeviceId, int]) -> None:
    facts = ctx.state.facts_of(instance.model)
    live = ctx.state.live_of(instance.id)
    took = ctx.now_s - live.effect_at_s
    freed = (live.seen_bytes or instance.claim.total_bytes) - sum(bytes_now.values())
    live.seen_bytes = sum(bytes_now.values())
    facts.sleeps += 1
    live.unanswered_sleeps = 0
    ctx.state.vacated_s |= dict.fromkeys(instance.devices, ctx.now_s)
    kept = max(bytes_now.values(), default=0)
    if kept or not live.held_bytes:  # who lives holds a context at least: nothing at all is what the dead keep
        teach(ctx, instance, lambda learned: learned.with_sleep(level, took if live.timed else None, kept))
    _note_cycle(ctx, instance, kept)
    claim = Claim({d: residue_of(ctx.state, instance, level) for d in instance.devices}, instance.claim.host_bytes).at_least(bytes_now)
    ctx.transition(instance.id, SleepConfirmed(at_s=ctx.now_s, level=level, claim=claim))
    ctx.tell("asleep", instance.model, f"slept {instance.model}: {human_bytes(freed)} freed in {human_seconds(took)}", level=level)


def most_residue(state: State, instance: Instance, level: int) -> int:
    """Device bytes above which its sleep at ``level`` is ineffective.

    What it should keep is often a guess, and a generous one for a small engine; so it must in any case hold less than before:
    by a part, or by half of its KV cache where all else only moves within the same memory.
    """
    footprint = state.facts_of(instance.model).footprint
    most = footprint.most_residue(level) + residue_of(state, instance, level) - footprint.residue(level)
    held = state.live_of(instance.id).held_bytes
    if held == 0:
        return most
    moves = level == 1 and footprint.kv_bytes > 0 and on_host(state, instance)
    least_freed = min(footprint.kv_bytes, held) // 2 if moves else int(held * LEAST_FREED)
    return min(most, held - least_freed)


def _note_cycle(ctx: Context, instance: Instance, kept_bytes: int) -> None:
    """An engine whose residue grows from sleep to sleep, or that has slept very often, is started afresh when idle."""
    live = ctx.state.live_of(instance.id)
    live.cycles += 1
    first = live.first_residue_bytes
    if first is None:
        live.first_residue_bytes = kept_bytes
    elif kept_bytes > max(first * GROWN_RESIDUE, first + GROWN_BYTES):
        live.recycle = f"its residue grew from {human_bytes(first)} to {human_bytes(kept_bytes)}"
    if live.cycles >= ctx.state.policy.recycle_cycles:
        live.recycle = f"it slept {live.cycles} times"


def _gone(ctx: Context, instance: Instance) -> None:
    """The group is gone and its bytes are free: stopped, or backing off when it failed and is wanted."""
    live = ctx.state.live_of(instance.id)
    facts = ctx.state.facts_of(instance.model)
    failed = live.exit_reason
    took = ctx.now_s - live.effect_at_s
    freed = live.seen_bytes or instance.claim.total_bytes
    ctx.state.vacated_s |= dict.fromkeys(instance.devices, ctx.now_s)
    if failed is None:
        if live.timed:
            teach(ctx, instance, lambda learned: learned.with_stop(took))
        end = LaunchEnd(launch=launch_id(instance), at=ctx.state.wall, result="stopped", reason=instance.reason.code)
        ctx.emit(EndLaunch(end=end))
    elif failed.code in _OUT_OF_MEMORY and instance.failures.launch and not _was_robbed(ctx, instance):
        _raise_guess(ctx, instance)
    delay = _retry_delay(ctx, instance, failed)
    ctx.transition(instance.id, GroupGone(at_s=ctx.now_s, retry_at_s=None if delay is None else ctx.now_s + delay))
    for lease in live.leases:  # its requests ended with it; whoever reports them later reports about another process
        ctx.state.leases.pop(lease, None)
    ctx.state.live[instance.id] = type(live)()
    why = {"code": failed.code.value if failed else "", "while": "launch" if instance.failures.launch else "crash"}
    if failed is not None and _exhausted(ctx, instance, failed):
        facts.half_open_at_s = ctx.now_s + ctx.state.half_open_s(instance.model)
        ctx.transition(instance.id, RetriesExhausted(at_s=ctx.now_s, reason=failed))
        ctx.tell("model_failed", instance.model, f"{instance.model} failed: {failed.text}", **why)
    elif failed is None:
        duration = f" in {human_seconds(took)}" if live.timed else ""
        done = f"stopped {instance.model}: {human_bytes(freed)} freed{duration}"
        ctx.tell("stopped", instance.model, f"let go of {instance.model}, which goes on by itself" if facts.attached else done)
    else:
        ctx.tell("engine_failed", instance.model, f"{instance.model}: {failed.text}", **why)


def _was_robbed(ctx: Context, instance: Instance) -> bool:
    """Whether others use now what it was started for: its start failed for them, and says nothing about its own size."""
    planned = ctx.state.facts_of(instance.model).footprint.launch_bytes()  # its claim may have risen to what it was seen to take
    for device in instance.devices:
        info = ctx.state.devices.get(device)
        others = ctx.state.claimed_on(device) - instance.claim.on(device)
        if info is not None and others + planned + ctx.state.foreign_on(device) > info.usable_bytes:
            return True
    return False


def _raise_guess(ctx: Context, instance: Instance) -> None:
    """It ran out of memory while starting: plan with more at the next try, if that is one of the same definition.

    Never with more than the largest of its seats can give, less KV cache included: who else took that memory is not known, so alone
    there it is tried again.
    """
    if not runs_present_spec(ctx, instance):
        return
    facts = ctx.state.facts_of(instance.model)
    plan = facts.footprint
    most = plan.uncautious(largest_seat(ctx.state, instance.model) + plan.kv_bytes - plan.kv_min_bytes)
    known = max(facts.guess.awake_bytes, plan.awake_bytes)
    grown = max(known, min(int(known * 1.3), most))
    facts.guess = replace(facts.guess, awake_bytes=grown, start_peak_bytes=max(grown, facts.guess.start_peak_bytes))
    if facts.learned.awake_bytes:
        teach(ctx, instance, lambda learned: learned.with_run(grown, grown, learned.kv_bytes))


def _retry_delay(ctx: Context, instance: Instance, failed: Reason | None) -> float | None:
    """Seconds to back off: none for a voluntary stop, a first crash, or when the failure was not its own."""
    if failed is None:
        return None
    if _exhausted(ctx, instance, failed):
        return 0.0
    count = instance.failures.total
    if failed.code is Code.CRASHED and instance.failures.launch == 0 and count <= 1:
        return None
    return 0.0 if failed.code in _NO_FAULT else min(60.0, 2.0 ** (count - 1))


def _exhausted(ctx: Context, instance: Instance, failed: Reason) -> bool:
    policy = ctx.state.policy
    if failed.code in PERMANENT and instance.failures.launch > 0:
        return True
    return instance.failures.launch >= policy.max_launch_failures or instance.failures.crash >= policy.max_crashes


def learn(ctx: Context, instance: Instance) -> None:
    """Keep what a sample says about an instance; raise a claim that is too small, settle one that was a guess."""
    live = ctx.state.live_of(instance.id)
    before = sum(live.measured.values())
    live.measured = ctx.state.measured_of(instance.id)
    most = max((b for d, b in live.measured.items() if d in instance.devices), default=0)
    if instance.phase is Phase.LAUNCHING:
        live.peak_bytes = max(live.peak_bytes, most)
        if sum(live.measured.values()) >= before + PROGRESS_BYTES:
            live.progress_at_s = ctx.now_s
    elif instance.phase in (Phase.AWAKE, Phase.DRAINING):
        if measured_since(ctx, instance, instance.since_s) is not None:
            live.held_bytes, live.seen_bytes = most, sum(live.measured.values())
            _tell_growth(ctx, instance, most)
            _learn_awake(ctx, instance, most)
        elif not live.learned_run:  # taken during the start, and told only now
            live.peak_bytes = max(live.peak_bytes, most)
    elif instance.phase is Phase.ASLEEP:
        _settle_asleep(ctx, instance)
    elif instance.phase is Phase.STOPPING:
        live.timed |= _is_seen_holding(ctx, instance)  # whoever began it, this daemon sees its end
    current = ctx.instance(instance.id)
    raised = current.claim.at_least(live.measured)
    if raised is not current.claim and current.has_process:
        ctx.set_claim(current.id, raised)


def _tell_growth(ctx: Context, instance: Instance, most: int) -> None:
    """Claims follow what is measured, in small steps: whoever looks later sees no difference between the two."""
    live = ctx.state.live_of(instance.id)
    known = live.known_bytes
    grew = 0 < known * TELL_GROWTH < most
    if grew or not known:
        live.known_bytes = most
    if grew:
        text = f"{instance.model} takes {human_bytes(most)} of a device, it took {human_bytes(known)} before: its claim rises with it"
        ctx.tell("grew", instance.model, text)


def _is_seen_holding(ctx: Context, instance: Instance) -> bool:
    samples = [sample for d in instance.devices if (sample := ctx.state.fresh_sample(d)) is not None]
    return any(sample.own.get(holder_of(instance.id), 0) > 0 for sample in samples)


def _settle_asleep(ctx: Context, instance: Instance) -> None:
    """A sleeper that was found, not seen falling asleep, gives up its claim once it was measured."""
    measured = all_measured_since(ctx, instance, instance.since_s)
    if measured is None:
        return
    residue = residue_of(ctx.state, instance, instance.level or 1)
    least = {d: min(instance.claim.on(d), max(residue, measured.get(d, 0))) for d in instance.devices}
    if least != dict(instance.claim.device_bytes):
        ctx.set_claim(instance.id, replace(instance.claim, device_bytes=least))


def _learn_awake(ctx: Context, instance: Instance, most: int) -> None:
    """The first sample of a run replaces the guess; later ones only raise it."""
    live = ctx.state.live_of(instance.id)
    facts = ctx.state.facts_of(instance.model)
    known = live.learned_run and bool(facts.learned.awake_bytes)  # a definition that was changed and changed back has forgotten it
    if not runs_present_spec(ctx, instance) or most <= (live.awake_bytes if known else 0):
        return
    live.awake_bytes = most
    # a start that nobody watched from its beginning says nothing about its peak: what was planned with stands
    peak = live.peak_bytes if live.watched else max(live.peak_bytes, facts.footprint.start_peak_bytes)
    teach(ctx, instance, lambda learned: learned.with_more(most) if known else learned.with_run(most, peak, live.kv_bytes))
    live.learned_run = True
    claim = seated(ctx, instance)
    if claim != instance.claim:
        ctx.set_claim(instance.id, claim)


def seated(ctx: Context, instance: Instance) -> Claim:
    """What an awake instance claims: its footprint, as far as there is room to rise, and never less than was measured."""
    state = ctx.state
    footprint = state.facts_of(instance.model).footprint
    measured = state.measured_of(instance.id)
    if not runs_present_spec(ctx, instance):
        return instance.claim.at_least(measured)  # that footprint is the one of its successor
    claim = {}
    for device in instance.devices:
        held, info = instance.claim.on(device), state.devices.get(device)
        room = info.usable_bytes - state.foreign_on(device) - state.claimed_on(device) if info is not None else 0
        claim[device] = max(measured.get(device, 0), min(footprint.seated_bytes(), held + max(0, room)))
    return Claim(claim, instance.claim.host_bytes)


def measured_since(ctx: Context, instance: Instance, since_s: float) -> dict[DeviceId, int] | None:
    """Bytes on each of its devices, from samples that began at ``since_s`` or later; None while one is missing.

    A device that is lost, or not known any more, is never measured again: there is nothing to wait for.
    """
    found = {}
    for device in (d for d in instance.devices if not _is_gone(ctx, d)):
        sample = ctx.state.samples.get(device)
        if sample is None or sample.started_at_s < since_s or holder_of(instance.id) not in sample.own:
            return None
        found[device] = sample.own[holder_of(instance.id)]
    return found


def all_measured_since(ctx: Context, instance: Instance, since_s: float) -> dict[DeviceId, int] | None:
    """As above, but None as well while one of its devices is not measured at all: zeros of such a device prove no sleep."""
    samples = ctx.state.samples
    if any(d not in ctx.state.devices or d not in samples or samples[d].health not in MEASURED for d in instance.devices):
        return None
    return measured_since(ctx, instance, since_s)


def _is_gone(ctx: Context, device: DeviceId) -> bool:
    sample = ctx.state.samples.get(device)
    return device not in ctx.state.devices or (sample is not None and sample.health in GONE)


def runs_present_spec(ctx: Context, instance: Instance) -> bool:
    """Whether its process was started with what is configured now, on a kind of device on which it would be started now."""
    spec, kinds = ctx.state.models.get(instance.model), ctx.state.facts_of(instance.model).kinds
    if kinds and any(ctx.state.devices[d].kind not in kinds for d in instance.devices if d in ctx.state.devices):
        return False
    return spec is not None and ctx.state.live_of(instance.id).fingerprint == spec.fingerprint()


def teach(ctx: Context, instance: Instance, lesson: Callable[[Learned], Learned]) -> None:
    """Keep what a run has shown for the next start, and for the next daemon.

    A process of an older definition teaches nothing: its sizes and times are not those of what is started next.
    """
    if not runs_present_spec(ctx, instance):
        return
    facts = ctx.state.facts_of(instance.model)
    kinds = [ctx.state.devices[d].kind for d in instance.devices if d in ctx.state.devices]
    facts.learned_kind = kinds[0] if kinds else facts.learned_kind
    facts.learned = replace(lesson(facts.learned), fingerprint=ctx.state.live_of(instance.id).fingerprint)
    ctx.emit(SaveLearned(model=instance.model, device_kind=facts.learned_kind, learned=facts.learned))


def meet(ctx: Context, instance: Instance, version: str) -> None:
    """It was started with this version of the engine: what was seen of that one counts, its denials too; a new one begins afresh."""
    facts = ctx.state.facts_of(instance.model)
    old, known = facts.learned, facts.archive.get(version)
    if known is None or version == old.version or not runs_present_spec(ctx, instance):
        teach(ctx, instance, lambda learned: learned.renewed(version))
    else:
        teach(ctx, instance, lambda _: known)
    if old.version not in ("", facts.learned.version):
        facts.archive[old.version] = old
