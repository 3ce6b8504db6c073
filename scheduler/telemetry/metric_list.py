"""Every metric of the daemon, as data: the registry and docs/reference/metrics.md are both made from this list.

Base units, and no ids, users or prompts as labels: a label's values are few and come from the configuration.
"""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Prometheus types in use."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; ``buckets`` (upper bounds, in the metric's unit) only for histograms."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


_WAIT_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_OVERHEAD_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5)
_DISK_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

METRICS: tuple[Metric, ...] = (
    Metric(
        "hotseat_requests_total", _C, ("model", "endpoint", "status"), "Inference requests that ended; status 499 = the client went away."
    ),
    Metric("hotseat_hold_seconds", _H, (), "Time a granted request was held before its model was ready for it.", _WAIT_S),
    Metric(
        "hotseat_ttft_seconds",
        _H,
        ("model", "woke"),
        "Arrival to the first byte of a streamed answer; woke = 1 if a wake or start was waited for.",
        _WAIT_S,
    ),
    Metric("hotseat_gateway_overhead_seconds", _H, (), "Time a request spent in the gateway itself.", _OVERHEAD_S),
    Metric(
        "hotseat_tokens_total",
        _C,
        ("model", "kind"),
        "Tokens as the engines reported them; kind = prompt_uncached, prompt_cached or completion.",
    ),
    Metric("hotseat_model_phase", _G, ("model", "phase"), "1 for the phase a model is in, 0 for the others."),
    Metric("hotseat_starts_total", _C, ("model", "result"), "Engine starts that ended; result = ready or the reason code of the failure."),
    Metric("hotseat_wakes_total", _C, ("model", "level"), "Wakes that ended with a serving model, by the sleep level they came from."),
    Metric("hotseat_wake_seconds", _H, ("model", "level"), "Duration of those wakes.", _WAIT_S),
    Metric("hotseat_sleep_ineffective_total", _C, ("model",), "Sleeps after which the engine kept its memory."),
    Metric("hotseat_model_failures_total", _C, ("model", "reason"), "Failures of engines by reason code."),
    Metric("hotseat_held_requests", _G, ("model",), "Requests held now."),
    Metric("hotseat_interrupted_requests_total", _C, ("cause",), "Answers that were cut after their first byte."),
    Metric("hotseat_device_memory_total_bytes", _G, ("device",), "Memory of the device that may be used at all."),
    Metric("hotseat_device_memory_used_bytes", _G, ("device",), "Memory in use, by anybody, as measured last."),
    Metric("hotseat_device_memory_foreign_bytes", _G, ("device",), "Memory in use by processes that are not hotseat's engines."),
    Metric("hotseat_device_memory_claimed_bytes", _G, ("device",), "Memory reserved for models by the scheduler."),
    Metric("hotseat_device_up", _G, ("device",), "1 while the device can be measured, 0 while it is stale or lost."),
    Metric(
        "hotseat_seat_seconds_total", _C, ("model", "use"), "Seconds a model held device memory; use = active (answering), idle or asleep."
    ),
    Metric("hotseat_degraded", _G, ("code",), "1 for each reason why the daemon does less than it should."),
    Metric("hotseat_disk_free_bytes", _G, ("area",), "Free disk space; area = state."),
    Metric("hotseat_db_commit_seconds", _H, (), "Duration of database commits.", _DISK_S),
    Metric("hotseat_loop_lag_seconds", _H, (), "How late the event loop runs what is due.", _LAG_S),
    Metric("hotseat_build_info", _G, ("version", "python"), "Always 1; says which build runs."),
)
