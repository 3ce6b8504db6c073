"""Footprints, claims, what is learned, devices, units: the numbers everything else is decided on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.domain.claims import NOTHING, UNMEASURED_FACTOR, Claim, Footprint, Source, even_claim
from scheduler.domain.device import DeviceInfo
from scheduler.domain.ids import DeviceId, InstanceId, ModelName, holder_of, instance_id, model_of
from scheduler.domain.learned import GROWTH, RUNS, Learned, combine
from scheduler.domain.units import GIB, KIB, MIB, gib, human_bytes, human_seconds, parse_duration, parse_size

GPU0, GPU1 = DeviceId("gpu0"), DeviceId("gpu1")
BYTES = st.integers(0, 1 << 45)

# --- footprints -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", Source)
def test_only_an_estimate_is_claimed_with_a_surcharge(source: Source) -> None:
    footprint = Footprint(awake_bytes=10 * GIB, start_peak_bytes=12 * GIB, source=source)
    factor = UNMEASURED_FACTOR if source is Source.ESTIMATED else 1.0
    assert footprint.launch_bytes() == int(12 * GIB * factor)
    assert footprint.seated_bytes() == int(10 * GIB * factor)


@given(awake=BYTES, peak=BYTES, source=st.sampled_from(Source))
def test_a_start_never_claims_less_than_being_awake(awake: int, peak: int, source: Source) -> None:
    footprint = Footprint(awake_bytes=awake, start_peak_bytes=peak, source=source)
    assert footprint.launch_bytes() >= footprint.seated_bytes() >= awake
    assert footprint.residue(1) <= max(awake, 1)


def test_priors_until_measured() -> None:
    footprint = Footprint(awake_bytes=20 * GIB, weights_bytes=10 * GIB)
    assert footprint.residue(1) == 3 * GIB // 2
    assert Footprint(awake_bytes=GIB).residue(1) == GIB // 2  # half of it at most, else it were no sleep
    assert footprint.host_copy(1) == int(13.5 * GIB) + 2 * GIB
    assert footprint.host_copy(2) == 0
    assert footprint.wake_seconds(1) == pytest.approx(10 * GIB / 20e9 + 1)
    assert footprint.wake_seconds(2) > footprint.wake_seconds(1)
    assert footprint.start_seconds() == pytest.approx(10 * GIB / 1e9 + 30)
    assert footprint.leave_seconds(None) == 2.0
    assert footprint.leave_seconds(1) == 3.0


def test_measurements_replace_priors() -> None:
    footprint = Footprint(
        awake_bytes=20 * GIB,
        residue_bytes={1: 7},
        host_bytes={1: 8},
        wake_s={1: 0.5},
        sleep_s={1: 0.25},
        start_s=9.0,
        stop_s=0.1,
        source=Source.MEASURED,
    )
    assert (footprint.residue(1), footprint.host_copy(1), footprint.wake_seconds(1)) == (7, 8, 0.5)
    assert (footprint.leave_seconds(1), footprint.leave_seconds(None), footprint.start_seconds()) == (0.25, 0.1, 9.0)


# --- claims -----------------------------------------------------------------------------------------------------


@given(claimed=st.dictionaries(st.sampled_from([GPU0, GPU1]), BYTES), measured=st.dictionaries(st.sampled_from([GPU0, GPU1]), BYTES))
def test_a_claim_is_raised_to_what_was_measured_and_never_lowered(claimed: dict[DeviceId, int], measured: dict[DeviceId, int]) -> None:
    claim = Claim(claimed, 5)
    raised = claim.at_least(measured)
    assert set(raised.device_bytes) == set(claimed)  # never onto a device it does not sit on
    assert raised.host_bytes == 5
    for device in claimed:
        assert raised.on(device) == max(claimed[device], measured.get(device, 0))
    assert (raised is claim) == all(measured.get(d, 0) <= b for d, b in claimed.items())


def test_even_claims_and_sums() -> None:
    claim = even_claim((GPU0, GPU1), 3, host_bytes=4)
    assert (claim.on(GPU0), claim.on(DeviceId("other")), claim.total_bytes, claim.host_bytes) == (3, 0, 6, 4)
    assert NOTHING.total_bytes == 0


# --- learned ----------------------------------------------------------------------------------------------------

GUESS = Footprint(awake_bytes=8 * GIB, start_peak_bytes=9 * GIB, weights_bytes=6 * GIB, start_s=20.0, residue_bytes={1: GIB})


def test_nothing_learned_changes_nothing() -> None:
    assert combine(GUESS, Learned()) == GUESS


def test_times_are_learned_before_sizes() -> None:
    timed = combine(GUESS, Learned().with_start(4.0).with_stop(1.5).with_wake(1, 0.7).with_sleep(1, 0.3, 5))
    assert timed.source is Source.ESTIMATED
    assert (timed.start_s, timed.stop_s, timed.wake_s[1], timed.sleep_s[1]) == (4.0, 1.5, 0.7, 0.3)
    assert timed.awake_bytes == 8 * GIB


def test_the_largest_of_the_last_runs_counts() -> None:
    learned = Learned()
    for size in (9, 3, 4, 5, 6, 7):
        learned = learned.with_run(size * GIB, size * GIB + 1)
    assert len(learned.awake_bytes) == RUNS
    measured = combine(GUESS, learned)
    assert measured.source is Source.MEASURED
    assert measured.awake_bytes == int(7 * GIB * GROWTH)  # the run of 9 GiB is forgotten
    assert measured.start_peak_bytes == measured.awake_bytes
    assert measured.weights_bytes == 6 * GIB


def test_a_peak_above_awake_is_kept() -> None:
    assert combine(GUESS, Learned().with_run(4 * GIB, 11 * GIB)).start_peak_bytes == 11 * GIB
    assert Learned().with_run(4, 2).peak_bytes == (4,)


def test_the_present_run_is_raised_never_lowered() -> None:
    learned = Learned().with_run(5, 5).with_run(6, 6)
    assert learned.with_more(9).awake_bytes == (5, 9)
    assert learned.with_more(2) is learned
    assert Learned().with_more(3) == Learned()


def test_residues_per_level_and_denials() -> None:
    learned = Learned().with_run(5, 5).with_sleep(1, 0.5, 100).with_sleep(1, 0.4, 90).with_sleep(2, 1.0, 10)
    assert combine(GUESS, learned).residue_bytes == {1: 100, 2: 10}
    denied = learned.with_denied(1)
    assert denied.denied_levels == (1,)
    assert denied.with_denied(1) is denied


@given(runs=st.lists(BYTES, min_size=1, max_size=12))
def test_what_was_measured_lately_is_never_undercut(runs: list[int]) -> None:
    learned = Learned()
    for run in runs:
        learned = learned.with_run(run, run)
    assert combine(GUESS, learned).seated_bytes() >= max(runs[-RUNS:])


# --- devices ----------------------------------------------------------------------------------------------------


def device(capacity: int, reserved: int = 0, headroom: int = 0) -> DeviceInfo:
    return DeviceInfo(
        id=GPU0, kind="nvidia", name="n", index=0, uuid="u", capacity_bytes=capacity, reserved_bytes=reserved, headroom_bytes=headroom
    )


def test_reserve_and_headroom_stay_empty() -> None:
    assert device(80 * GIB, GIB, 2 * GIB).usable_bytes == 77 * GIB


@pytest.mark.parametrize(("capacity", "margin"), [(80 * GIB, 80 * GIB // 50), (24 * GIB, 512 * MIB), (2 * GIB, 64 * MIB)])
def test_the_margin_suits_the_size(capacity: int, margin: int) -> None:
    assert device(capacity).margin_bytes == margin


# --- ids and units ----------------------------------------------------------------------------------------------


def test_ids_name_their_model() -> None:
    iid = instance_id(ModelName("org/model:q4"), 2)
    assert (iid, model_of(iid), holder_of(iid)) == ("org/model:q4#2", "org/model:q4", "org/model:q4#2")
    assert model_of(InstanceId("a#0")) == "a"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16GiB", 16 * GIB),
        ("512 MiB", 512 * MIB),
        ("1.5GiB", 3 * GIB // 2),
        ("4KiB", 4 * KIB),
        ("16GB", 16 * 10**9),
        ("1TiB", 1024 * GIB),
        ("123", 123),
        (" 7 ", 7),
        (42, 42),
    ],
)
def test_sizes(text: str | int, value: int) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("16G", "16GiB"),
        ("16g", "16GiB"),
        ("4 M", "4MiB"),
        ("x", "not a size"),
        ("-1", "not a size"),
        ("", "not a size"),
        ("1.5", "unknown unit"),
        ("3 parsec", "unknown unit"),
        (-1, "negative"),
    ],
)
def test_sizes_that_are_refused_say_what_to_write(text: str | int, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "value"), [("30s", 30), ("5m", 300), ("2h", 7200), ("1h30m", 5400), ("250ms", 0.25), ("1d", 86400), ("1.5s", 1.5)]
)
def test_durations(text: str, value: float) -> None:
    assert parse_duration(text) == value


@pytest.mark.parametrize("text", ["", "30", "s", "5 m", "-3s", "1h x", "m5"])
def test_durations_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


def test_a_bare_number_is_no_duration() -> None:
    with pytest.raises(ValueError, match="write 30s, 30m or 30h"):
        parse_duration(30)


@pytest.mark.parametrize(
    ("value", "text"), [(512 * MIB, "512 MiB"), (0, "0 MiB"), (GIB, "1.0 GiB"), (int(17.14 * GIB), "17.1 GiB"), (-3 * GIB, "-3.0 GiB")]
)
def test_bytes_for_people(value: int, text: str) -> None:
    assert human_bytes(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.84, "0.8 s"), (12, "12 s"), (119, "119 s"), (180, "3 min"), (9000, "2.5 h")])
def test_seconds_for_people(value: float, text: str) -> None:
    assert human_seconds(value) == text


def test_gib_for_tables() -> None:
    assert (gib(17_179_869_184), gib(GIB // 4, 2)) == ("16.0", "0.25")


@given(value=st.integers(0, 1 << 50))
def test_plain_bytes_are_read_back(value: int) -> None:
    assert parse_size(str(value)) == value
