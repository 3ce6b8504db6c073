"""The registry counts what it says, under the names that interfaces promise."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from scheduler.api.schemas import Disk
from scheduler.daemon.prometheus import Exposition
from scheduler.domain.instance import Phase
from scheduler.gateway.metrics import GatewayMetrics
from scheduler.telemetry.metric_list import METRICS, Kind
from scheduler.telemetry.metrics import Metrics
from tests.support import worlds


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("0.1.0")


def samples(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """Label values, in the order of their names -> value, read back from the text as Prometheus would."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.text())
        for sample in family.samples
        if sample.name == name
    }


def test_the_text_declares_exactly_the_listed_metrics(metrics: Metrics) -> None:
    declared = {}
    for line in metrics.text().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            declared[name] = kind
    assert declared == {metric.name: str(metric.kind) for metric in METRICS}


def test_names_follow_the_conventions() -> None:
    for metric in METRICS:
        assert metric.name.startswith("hotseat_")
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM), metric.name
        assert list(metric.buckets) == sorted(metric.buckets)
        assert metric.help.endswith("."), metric.name
        assert not {"id", "user", "key", "principal", "instance", "request"} & set(metric.labels)


def test_the_gateway_may_use_it(metrics: Metrics) -> None:
    port: GatewayMetrics = metrics
    port.request("coder", "chat/completions", 200)
    port.request("coder", "chat/completions", 200)
    port.hold(2.0)
    port.ttft("coder", True, 0.3)
    port.overhead(0.0002)
    port.tokens("coder", "completion", 41)
    port.tokens("coder", "completion", 0)
    port.tokens("coder", "completion", -3)
    port.interrupted("engine_lost")
    assert samples(metrics, "hotseat_requests_total") == {("chat/completions", "coder", "200"): 2}
    assert samples(metrics, "hotseat_hold_seconds_sum") == {(): 2.0}
    assert samples(metrics, "hotseat_ttft_seconds_count") == {("coder", "1"): 1}
    assert samples(metrics, "hotseat_gateway_overhead_seconds_count") == {(): 1}
    assert samples(metrics, "hotseat_tokens_total") == {("completion", "coder"): 41}
    assert samples(metrics, "hotseat_interrupted_requests_total") == {("engine_lost",): 1}


def test_a_model_is_in_one_phase(metrics: Metrics) -> None:
    metrics.phase("coder", Phase.LAUNCHING)
    metrics.phase("coder", Phase.AWAKE)
    found = samples(metrics, "hotseat_model_phase")
    assert len(found) == len(Phase)
    assert [key for key, value in found.items() if value] == [("coder", "awake")]


def test_models_count_their_life(metrics: Metrics) -> None:
    metrics.started("coder", "ready")
    metrics.started("coder", "device_oom")
    metrics.woke("coder", 1, 2.9)
    metrics.sleep_ineffective("coder")
    metrics.failed("coder", "device_oom")
    metrics.seat("coder", "idle", 12.5)
    metrics.held("coder", 3)
    assert samples(metrics, "hotseat_starts_total") == {("coder", "ready"): 1, ("coder", "device_oom"): 1}
    assert samples(metrics, "hotseat_wakes_total") == {("1", "coder"): 1}
    assert samples(metrics, "hotseat_wake_seconds_sum") == {("1", "coder"): 2.9}
    assert samples(metrics, "hotseat_sleep_ineffective_total") == {("coder",): 1}
    assert samples(metrics, "hotseat_model_failures_total") == {("coder", "device_oom"): 1}
    assert samples(metrics, "hotseat_seat_seconds_total") == {("coder", "idle"): 12.5}
    assert samples(metrics, "hotseat_held_requests") == {("coder",): 3}


def test_degraded_is_replaced_as_a_whole(metrics: Metrics) -> None:
    metrics.degraded(["store", "config_invalid"])
    metrics.degraded(["store"])
    assert samples(metrics, "hotseat_degraded") == {("store",): 1}
    metrics.degraded([])
    assert samples(metrics, "hotseat_degraded") == {}


def test_the_daemon_itself(metrics: Metrics) -> None:
    metrics.disk_free("state", 5_000_000_000)
    metrics.db_commit(0.004)
    metrics.loop_lag(0.001)
    assert samples(metrics, "hotseat_disk_free_bytes") == {("state",): 5e9}
    assert samples(metrics, "hotseat_db_commit_seconds_count") == {(): 1}
    assert samples(metrics, "hotseat_loop_lag_seconds_count") == {(): 1}
    assert [key[1] for key in samples(metrics, "hotseat_build_info")] == ["0.1.0"]


def test_what_is_not_known_has_no_sample() -> None:
    metrics = Exposition("0.1.0")
    known = worlds.gpu(0, used_bytes=5, foreign_bytes=0)
    names = ("hotseat_device_memory_used_bytes", "hotseat_device_memory_foreign_bytes", "hotseat_disk_free_bytes")
    for device, free, found in (
        (known, 7, [{("gpu0",): 5.0}, {("gpu0",): 0.0}, {("state",): 7.0}]),
        (known.model_copy(update={"used_bytes": None, "foreign_bytes": None, "health": "stale"}), None, [{}, {}, {}]),
    ):
        metrics.scrape(worlds.world([], devices=[device], disk=Disk(state_free_bytes=free)))
        assert [samples(metrics, name) for name in names] == found
        assert samples(metrics, "hotseat_device_memory_total_bytes") == {("gpu0",): known.total_bytes}


def test_two_registries_share_nothing(metrics: Metrics) -> None:
    metrics.request("coder", "chat/completions", 200)
    assert samples(Metrics("0.1.0"), "hotseat_requests_total") == {}


def test_hostile_label_values_stay_one_sample(metrics: Metrics) -> None:
    name = 'a"b\\c\nd}'
    metrics.held(name, 1)
    assert samples(metrics, "hotseat_held_requests") == {(name,): 1}
