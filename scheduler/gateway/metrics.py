"""What the gateway counts. The Prometheus side is scheduler/telemetry/metrics.py; names as in docs/reference/metrics.md."""

from typing import Protocol


class GatewayMetrics(Protocol):
    """Calls are cheap and never raise. ``model`` is a registered name, or "" when the request named none."""

    def request(self, model: str, endpoint: str, status: int) -> None:
        """hotseat_requests_total: one request ended. 499 = the client went away."""
        ...

    def hold(self, seconds: float) -> None:
        """hotseat_hold_seconds: how long a request waited for its lease."""
        ...

    def ttft(self, model: str, woke: bool, seconds: float) -> None:
        """hotseat_ttft_seconds: arrival to the first byte of a streamed answer, waiting included."""
        ...

    def overhead(self, seconds: float) -> None:
        """hotseat_gateway_overhead_seconds: time spent in the gateway itself before the engine had the request."""
        ...

    def tokens(self, model: str, kind: str, count: int) -> None:
        """hotseat_tokens_total; ``kind`` is prompt_uncached, prompt_cached or completion."""
        ...

    def interrupted(self, cause: str) -> None:
        """hotseat_interrupted_requests_total: an answer broke off after its first byte; engine_lost, aborted or cut."""
        ...


class NoMetrics:
    """Counts nothing."""

    def request(self, model: str, endpoint: str, status: int) -> None: ...

    def hold(self, seconds: float) -> None: ...

    def ttft(self, model: str, woke: bool, seconds: float) -> None: ...

    def overhead(self, seconds: float) -> None: ...

    def tokens(self, model: str, kind: str, count: int) -> None: ...

    def interrupted(self, cause: str) -> None: ...
