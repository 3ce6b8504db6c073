"""The Prometheus registry of one daemon. Rooms call these methods and never see prometheus_client."""

import platform
from collections.abc import Collection
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from scheduler.domain.instance import Phase
from scheduler.telemetry.metric_list import METRICS, Kind, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# The library would add a second series, ..._created, for each counter and histogram: names nobody documented.
disable_created_metrics()  # type: ignore[no-untyped-call]

W = TypeVar("W", bound=MetricWrapperBase)


class Metrics:
    """Cheap, never raises on a good label; ``model`` is always a registered name, or "" for none.

    Each object has a registry of its own: two daemons in one test process do not share counts.
    """

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        self._all: dict[str, MetricWrapperBase] = {metric.name: self._make(metric) for metric in METRICS}
        self._gauge("hotseat_build_info").labels(version, platform.python_version()).set(1)

    def _make(self, metric: Metric) -> MetricWrapperBase:
        if metric.kind is Kind.HISTOGRAM:
            return Histogram(metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=self.registry)
        make = Counter if metric.kind is Kind.COUNTER else Gauge
        return make(metric.name, metric.help, metric.labels, registry=self.registry)

    def _get(self, name: str, kind: type[W]) -> W:
        found = self._all[name]
        assert isinstance(found, kind)
        return found

    def _counter(self, name: str) -> Counter:
        return self._get(name, Counter)

    def _gauge(self, name: str) -> Gauge:
        return self._get(name, Gauge)

    def _histogram(self, name: str) -> Histogram:
        return self._get(name, Histogram)

    def text(self) -> str:
        """All of it in Prometheus' text format, to be served as :data:`CONTENT_TYPE`."""
        return generate_latest(self.registry).decode()

    # --- data plane (the gateway's GatewayMetrics) ---------------------------------------------------------------

    def request(self, model: str, endpoint: str, status: int) -> None:
        """One request ended."""
        self._counter("hotseat_requests_total").labels(model, endpoint, str(status)).inc()

    def hold(self, seconds: float) -> None:
        """A request got its lease after waiting ``seconds``."""
        self._histogram("hotseat_hold_seconds").observe(seconds)

    def ttft(self, model: str, woke: bool, seconds: float) -> None:
        """The first byte of a streamed answer came ``seconds`` after the request arrived."""
        self._histogram("hotseat_ttft_seconds").labels(model, "1" if woke else "0").observe(seconds)

    def overhead(self, seconds: float) -> None:
        """Time in the gateway itself."""
        self._histogram("hotseat_gateway_overhead_seconds").observe(seconds)

    def tokens(self, model: str, kind: str, count: int) -> None:
        """``kind`` is prompt_uncached, prompt_cached or completion; a count below 1 is ignored (engines report odd ones)."""
        if count > 0:
            self._counter("hotseat_tokens_total").labels(model, kind).inc(count)

    def interrupted(self, cause: str) -> None:
        """An answer was cut."""
        self._counter("hotseat_interrupted_requests_total").labels(cause).inc()

    # --- models --------------------------------------------------------------------------------------------------

    def phase(self, model: str, phase: Phase) -> None:
        """``model`` is in ``phase`` now."""
        gauge = self._gauge("hotseat_model_phase")
        for each in Phase:
            gauge.labels(model, each.value).set(1 if each is phase else 0)

    def held(self, model: str, count: int) -> None:
        """``count`` requests wait for ``model`` now."""
        self._gauge("hotseat_held_requests").labels(model).set(count)

    def started(self, model: str, result: str) -> None:
        """A start ended: ``ready`` or a reason code."""
        self._counter("hotseat_starts_total").labels(model, result).inc()

    def woke(self, model: str, level: int, seconds: float) -> None:
        """A wake from ``level`` ended with a serving model."""
        self._counter("hotseat_wakes_total").labels(model, str(level)).inc()
        self._histogram("hotseat_wake_seconds").labels(model, str(level)).observe(seconds)

    def sleep_ineffective(self, model: str) -> None:
        """A sleep freed nothing."""
        self._counter("hotseat_sleep_ineffective_total").labels(model).inc()

    def failed(self, model: str, reason: str) -> None:
        """An engine failed with this reason code."""
        self._counter("hotseat_model_failures_total").labels(model, reason).inc()

    def seat(self, model: str, use: str, seconds: float) -> None:
        """``model`` held device memory for ``seconds``; ``use`` is active, idle or asleep."""
        self._counter("hotseat_seat_seconds_total").labels(model, use).inc(seconds)

    # --- devices and the daemon itself ---------------------------------------------------------------------------

    def device(
        self, device: str, *, total_bytes: int | None, used_bytes: int | None, foreign_bytes: int | None, claimed_bytes: int, up: bool
    ) -> None:
        """State of one device. None = not known: it has no sample then, for 0 would be a lie."""
        values = {"total": total_bytes, "used": used_bytes, "foreign": foreign_bytes, "claimed": claimed_bytes}
        for which, value in values.items():
            self._known(f"hotseat_device_memory_{which}_bytes", device, value)
        self._gauge("hotseat_device_up").labels(device).set(1 if up else 0)

    def _known(self, name: str, label: str, value: float | None) -> None:
        if value is None:
            self._gauge(name).remove(label)
        else:
            self._gauge(name).labels(label).set(value)

    def degraded(self, codes: Collection[str]) -> None:
        """``codes`` is the whole list of present reasons."""
        gauge = self._gauge("hotseat_degraded")
        gauge.clear()
        for code in codes:
            gauge.labels(code).set(1)

    def disk_free(self, area: str, free_bytes: int | None) -> None:
        """Free space of the file system that ``area`` lies on; None = not known."""
        self._known("hotseat_disk_free_bytes", area, free_bytes)

    def db_commit(self, seconds: float) -> None:
        """One commit took ``seconds``."""
        self._histogram("hotseat_db_commit_seconds").observe(seconds)

    def loop_lag(self, seconds: float) -> None:
        """Something due ran ``seconds`` late."""
        self._histogram("hotseat_loop_lag_seconds").observe(seconds)
