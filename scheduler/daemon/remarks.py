"""What `hotseat config check` can tell of a valid configuration without a daemon and without looking for cards."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from adapters.registry import engines
from scheduler.config.report import Remark
from scheduler.config.settings import Loaded
from scheduler.domain.device import DeviceInfo
from scheduler.domain.ids import ModelName
from scheduler.domain.model import ModelSpec
from scheduler.domain.units import human_bytes
from scheduler.orchestrator.crowds import crowds
from scheduler.orchestrator.devices import seat_kinds
from scheduler.orchestrator.state import State


def remarks(loaded: Loaded) -> list[Remark]:
    """Warnings about sleep levels that an engine does not have, and about models that are to be awake always and never fit on the
    declared devices together; notes about what only the daemon can know. Reads models' files."""
    return [*_of_levels(loaded), *asyncio.run(_of_always(loaded))]


def _of_levels(loaded: Loaded) -> Iterator[Remark]:
    known = engines()
    for name, spec in loaded.models.items():
        able = known[spec.engine].levels(replace(spec, devices=replace(spec.devices, kind=next(iter(_kinds(loaded, spec)), None))))
        lacking = [str(level) for level in spec.levels or () if level not in able]
        if spec.enabled and lacking:
            has = f"has {' and '.join(map(str, able))}" if able else "has none"
            text = f"{name}: levels names {' and '.join(lacking)}; with these flags its engine {spec.engine} {has}"
            yield Remark("warning", text, "correct levels, or remove it to use what the engine has")


def _kinds(loaded: Loaded, spec: ModelSpec) -> tuple[str, ...]:
    """Kinds of device it may sit on, if the cards that are looked for are there."""
    kind_of = {device.id: device.kind for device in loaded.devices}
    return seat_kinds(spec.devices, engines()[spec.engine].device_kinds, {*loaded.settings.discover, *kind_of.values()}, kind_of)


async def _of_always(loaded: Loaded) -> list[Remark]:
    state, unseen = await _declared(loaded)
    found = [Remark("warning", reason.text, reason.fix) for reason in crowds(state)]
    if len(unseen) > 1:
        sizes = ", ".join(f"{model} {human_bytes(size)}" for model, size in unseen.items())
        text = f"whether these fit together, all of them awake: always, is said when the daemon starts and has found its cards: {sizes}"
        found.append(Remark("note", text))
    return found


async def _declared(loaded: Loaded) -> tuple[State, dict[ModelName, int]]:
    """(the declared devices with the models that sit there, bytes per device of those that may sit on cards)."""
    devices = {
        device.id: DeviceInfo(
            id=device.id,
            kind=device.kind,
            name=device.id,
            index=index,
            uuid="",
            capacity_bytes=device.memory_bytes,
            headroom_bytes=device.headroom_bytes,
            allocatable=device.use,
        )
        for index, device in enumerate(loaded.devices)
    }
    state, unseen, known = State(devices=devices), {}, engines()
    looked_for = set(loaded.settings.discover)
    for name, spec in loaded.models.items():
        if not (spec.enabled and spec.always_awake):
            continue
        kinds = _kinds(loaded, spec)
        size = await known[spec.engine].estimate(replace(spec, devices=replace(spec.devices, kind=next(iter(kinds), None))))
        if looked_for.isdisjoint(kinds):
            state.models[name] = spec
            state.facts_of(name).kinds, state.facts_of(name).guess = kinds, size
        else:
            unseen[name] = size.awake_bytes
    return state, unseen
