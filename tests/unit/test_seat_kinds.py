"""On which kinds of device a model may sit, before anybody looks how full they are."""

import pytest

from scheduler.domain.ids import DeviceId
from scheduler.domain.model import DeviceWish
from scheduler.orchestrator.devices import seat_kinds

KIND_OF = {DeviceId("gpu0"): "nvidia", DeviceId("gpu1"): "nvidia", DeviceId("cpu0"): "cpu"}
VLLM = ("nvidia", "cpu")


@pytest.mark.parametrize(
    ("here", "kinds"),
    [
        ({"nvidia", "cpu"}, ("nvidia",)),  # a full card is no reason to sit on the CPU
        ({"cpu"}, ("cpu",)),  # without a card nobody has to say so
        ({"nvidia"}, ("nvidia",)),
        ({"amd"}, VLLM),  # none of them is here: what is missing is named by the preferred one
        (set(), VLLM),
    ],
)
def test_the_first_kind_that_is_here(here: set[str], kinds: tuple[str, ...]) -> None:
    assert seat_kinds(DeviceWish(), VLLM, here, {}) == kinds


def test_a_kind_that_is_wished_for_is_not_replaced() -> None:
    assert seat_kinds(DeviceWish(kind="cpu"), VLLM, {"nvidia", "cpu"}, KIND_OF) == ("cpu",)
    assert seat_kinds(DeviceWish(kind="nvidia"), VLLM, {"cpu"}, KIND_OF) == ("nvidia",)


def test_devices_that_are_named_say_the_kind() -> None:
    both = {"nvidia", "cpu"}
    assert seat_kinds(DeviceWish(ids=(DeviceId("cpu0"),)), VLLM, both, KIND_OF) == ("cpu",)
    assert seat_kinds(DeviceWish(ids=(DeviceId("gpu1"),)), VLLM, both, KIND_OF) == ("nvidia",)
    assert seat_kinds(DeviceWish(ids=(DeviceId("cpu0"), DeviceId("gpu0"))), VLLM, both, KIND_OF) == VLLM
    assert seat_kinds(DeviceWish(ids=(DeviceId("gpu7"),)), VLLM, {"cpu"}, KIND_OF) == ("cpu",)  # which no device will match
    assert seat_kinds(DeviceWish(ids=(DeviceId("gpu0"),)), ("cpu",), both, KIND_OF) == ("cpu",)
