"""Models that are configured ``awake: always`` and can never be so together."""

from dataclasses import replace

import pytest

from scheduler.domain.device import DeviceInfo
from scheduler.domain.ids import DeviceId
from scheduler.domain.model import DeviceWish
from scheduler.domain.units import GIB
from scheduler.orchestrator.crowds import crowds
from tests.support.behaviour import Behaviour
from tests.support.plain import Plain
from tests.support.world import device


def texts(sizes: dict[str, float], *cards: float | DeviceInfo, **wishes: DeviceWish) -> list[str]:
    """What is said of always-awake models of these sizes on cards of these sizes (GiB)."""
    infos = [device(f"gpu{n}", card, index=n) if isinstance(card, float | int) else card for n, card in enumerate(cards)]
    specs = {m: {"always_awake": True, **({"devices": wishes[m]} if m in wishes else {})} for m in sizes}
    behaviours = {m: Behaviour(awake_bytes=int(gib * GIB)) for m, gib in sizes.items()}
    world = Plain({}, infos=infos, specs=specs, behaviours=behaviours)
    return [reason.text for reason in crowds(world.state)]


def test_models_sizes_and_devices_are_named() -> None:
    room = device("gpu0", 24).usable_bytes
    [text] = texts({"a": 16, "b": 10}, 24)
    assert text == (
        "a and b are configured awake: always and can never be so together: a takes 16.0 GiB (declared), b takes 10.0 GiB (declared); "
        f"gpu0 has {room / GIB:.1f} GiB"
    )


@pytest.mark.parametrize(
    ("sizes", "cards", "said"),
    [
        ({"a": 16, "b": 7}, (24,), False),
        ({"a": 12, "b": 12.1}, (24,), True),
        ({"a": 16, "b": 16}, (24, 24), False),
        ({"a": 16, "b": 16, "c": 16}, (24, 24), True),
        ({"a": 15, "b": 8, "c": 8, "d": 15}, (24, 24), False),
        ({f"m{n}": 16 for n in range(8)}, (24,) * 8, False),
        ({f"m{n}": 16 for n in range(9)}, (24,) * 8, True),  # 144 of 192 GiB, and yet
        ({"a": 30}, (24, 24), True),
        ({}, (24,), False),
    ],
)
def test_who_fits_together(sizes: dict[str, float], cards: tuple[float, ...], said: bool) -> None:
    assert bool(texts(sizes, *cards)) is said


def test_what_was_measured_counts_and_not_what_was_guessed() -> None:
    world = Plain(
        {"gpu0": 24},
        specs={m: {"always_awake": True} for m in "ab"},
        behaviours={m: Behaviour(awake_bytes=10 * GIB, guess_bytes=16 * GIB) for m in "ab"},
    )
    assert "a takes 16.0 GiB (estimated)" in crowds(world.state)[0].text
    world.ask("a")
    world.settle()
    world.ask("b")
    world.settle()
    assert crowds(world.state) == []


def test_only_those_that_meet_are_named() -> None:
    first, second = DeviceWish(ids=(DeviceId("gpu0"),)), DeviceWish(ids=(DeviceId("gpu1"),))
    wishes = {"a": first, "b": first, "c": second}
    [text] = texts({"a": 16, "b": 16, "c": 16, "d": 1}, 24, 24, **wishes)
    assert text.startswith("a and b are configured")
    assert "gpu1" not in text
    one, other = texts({"a": 16, "b": 16, "c": 16, "d": 1, "huge": 40}, 24, 24, **wishes)
    assert (one.startswith("a and b "), other.startswith("huge is configured awake: always and can never be: ")) == (True, True)


def test_a_gang_takes_its_bytes_on_each_of_its_devices() -> None:
    [text] = texts({"gang": 16, "b": 10}, 24, 24, gang=DeviceWish(count=2))
    assert "gang takes 16.0 GiB on each of 2 (declared)" in text
    assert texts({"gang": 16, "b": 10}, 24, 24, 24, gang=DeviceWish(count=2)) == []


def test_a_card_for_one_process_takes_one_model() -> None:
    alone = replace(device("gpu0", 24), max_processes=1)
    assert texts({"a": 4, "b": 4}, alone)
    assert texts({"a": 4}, alone) == []


def test_what_nobody_knows_now_is_not_said() -> None:
    unread = replace(device("gpu0", 24), capacity_bytes=0)
    assert texts({"a": 16, "b": 16}, unread) == []
    assert texts({"a": 16, "b": 16}) == [], "no device at all is told elsewhere"


@pytest.mark.parametrize("fields", [{"always_awake": False}, {"enabled": False}])
def test_the_others_do_not_count(fields: dict[str, object]) -> None:
    behaviours = {m: Behaviour(awake_bytes=16 * GIB) for m in "ab"}
    world = Plain({"gpu0": 24}, specs={"a": {"always_awake": True}, "b": {"always_awake": True, **fields}}, behaviours=behaviours)
    assert crowds(world.state) == []
