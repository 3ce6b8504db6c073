"""What `hotseat config check` can tell of models that are to be awake always, without a daemon and without looking for cards."""

import asyncio
from dataclasses import replace

from adapters.registry import engines
from scheduler.config.report import Remark
from scheduler.config.settings import Loaded
from scheduler.domain.device import DeviceInfo
from scheduler.domain.ids import ModelName
from scheduler.domain.units import human_bytes
from scheduler.orchestrator.crowds import crowds
from scheduler.orchestrator.devices import seat_kinds
from scheduler.orchestrator.state import State


def always_remarks(loaded: Loaded) -> list[Remark]:
    """Warnings about those that never fit on the declared devices together, and which of them are not known to. Reads models' files."""
    return asyncio.run(_remarks(loaded))


async def _remarks(loaded: Loaded) -> list[Remark]:
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
    here, kind_of = looked_for | {info.kind for info in devices.values()}, {info.id: info.kind for info in devices.values()}
    for name, spec in loaded.models.items():
        if not (spec.enabled and spec.always_awake):
            continue
        engine = known[spec.engine]
        kinds = seat_kinds(spec.devices, engine.device_kinds, here, kind_of)
        size = await engine.estimate(replace(spec, devices=replace(spec.devices, kind=next(iter(kinds), None))))
        if looked_for.isdisjoint(kinds):
            state.models[name] = spec
            state.facts_of(name).kinds, state.facts_of(name).guess = kinds, size
        else:
            unseen[name] = size.awake_bytes
    return state, unseen
