"""JSON columns: what is written comes back, whatever version wrote it."""

import json
import math

import pytest
from hypothesis import given

from scheduler.domain.claims import Claim, Footprint
from scheduler.domain.errors import Invalid, Permanent
from scheduler.domain.instance import Failures, Phase
from scheduler.domain.learned import Learned
from scheduler.domain.model import DeviceWish, ModelSpec
from scheduler.store.codec import dumps, loads, member
from tests.support.store_records import any_of, model


@given(any_of(ModelSpec))
def test_any_model_comes_back(spec: ModelSpec) -> None:
    assert loads(ModelSpec, dumps(spec)) == spec
    assert loads(ModelSpec, dumps(spec)).fingerprint() == spec.fingerprint()


@given(any_of(Footprint), any_of(Learned), any_of(Claim), any_of(Failures))
def test_any_measurement_comes_back(footprint: Footprint, learned: Learned, claim: Claim, failures: Failures) -> None:
    for value in (footprint, learned, claim, failures):
        assert loads(type(value), dumps(value)) == value


def test_a_field_added_later_takes_its_default_and_one_of_a_newer_version_is_ignored() -> None:
    stored = json.loads(dumps(model()))
    del stored["drain_timeout_s"], stored["devices"]["min_memory_bytes"]
    stored["colour"] = "green"
    stored["devices"]["island"] = 3
    read = loads(ModelSpec, json.dumps(stored))
    assert read.drain_timeout_s == ModelSpec(name=read.name, engine="x").drain_timeout_s
    assert read.devices == DeviceWish(kind="cpu", count=1, ids=read.devices.ids)


def test_a_whole_number_is_a_float_again_where_one_is_meant() -> None:
    assert isinstance(loads(ModelSpec, '{"name":"a","engine":"x","min_awake_s":30}').min_awake_s, float)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_cannot_hold_are_refused_with_a_code(bad: float) -> None:
    with pytest.raises(Invalid) as refused:
        dumps(model(min_awake_s=bad))
    assert refused.value.code == "store_value"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"engine":"x"}',
        '{"name":3,"engine":"x"}',
        '{"name":"a","engine":"x","aliases":"b"}',
        '{"name":"a","engine":"x","env":[["A"]]}',
        '{"name":"a","engine":"x","model_class":"urgent"}',
        '{"name":"a","engine":"x","devices":7}',
    ],
)
def test_a_damaged_value_is_an_error_with_code_and_fix(text: str) -> None:
    with pytest.raises(Permanent) as failed:
        loads(ModelSpec, text)
    assert failed.value.code == "store_unreadable"
    assert "ModelSpec" in failed.value.message
    assert failed.value.fix


def test_a_word_of_a_newer_version_falls_back() -> None:
    assert member(Phase, "hovering", Phase.UNKNOWN) is Phase.UNKNOWN
    assert member(Phase, "awake", Phase.UNKNOWN) is Phase.AWAKE
    assert member(Phase, None, Phase.STOPPED) is Phase.STOPPED
