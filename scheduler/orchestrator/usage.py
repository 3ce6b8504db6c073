"""Usage per model and minute, summed in memory and written in the background: the hot path never waits for the store."""

from dataclasses import replace

from scheduler.domain.lease import Lease, Outcome
from scheduler.orchestrator.readiness import Usage
from scheduler.ports.clock import Clock
from scheduler.store.usage import Counts, UsageRow

#: Rows kept while the store cannot take them; the oldest sums are merged away beyond that.
MOST_ROWS = 50_000


class UsageBook:
    """Collects; ``take`` hands over what is to be written, ``put_back`` takes it back when it could not be."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rows: dict[tuple[str, int, str, str], UsageRow] = {}

    def add(self, lease: Lease, outcome: Outcome, usage: Usage | None) -> None:
        """One lease has ended, and the request with it unless it goes on with another one."""
        if usage is not None and usage.again:
            return
        counts = Counts(
            requests=1,
            errors=int(outcome in (Outcome.ENGINE_ERROR, Outcome.ENGINE_LOST, Outcome.ABORTED)),
            prompt_tokens=(usage.prompt_tokens or 0) if usage else 0,
            cached_tokens=(usage.cached_tokens or 0) if usage else 0,
            completion_tokens=(usage.completion_tokens or 0) if usage else 0,
            holds=int(lease.waited_s >= 0.1),
            cold_hits=int(lease.woke),
            hold_seconds=lease.waited_s,
        )
        at = self._clock.wall()
        endpoint = usage.endpoint if usage else ""
        self._merge(UsageRow(model=lease.model, at=at, principal=lease.principal, endpoint=endpoint, counts=counts))

    def take(self) -> list[UsageRow]:
        """What has collected since the last time."""
        rows, self._rows = list(self._rows.values()), {}
        return rows

    def put_back(self, rows: list[UsageRow]) -> None:
        """It could not be written."""
        for row in rows[-MOST_ROWS:]:
            self._merge(row)

    def _merge(self, row: UsageRow) -> None:
        key = (row.model, int(row.at // 60), row.principal, row.endpoint)
        known = self._rows.get(key)
        self._rows[key] = row if known is None else replace(known, counts=_sum(known.counts, row.counts))


def _sum(a: Counts, b: Counts) -> Counts:
    return Counts(
        requests=a.requests + b.requests,
        errors=a.errors + b.errors,
        prompt_tokens=a.prompt_tokens + b.prompt_tokens,
        cached_tokens=a.cached_tokens + b.cached_tokens,
        completion_tokens=a.completion_tokens + b.completion_tokens,
        holds=a.holds + b.holds,
        cold_hits=a.cold_hits + b.cold_hits,
        hold_seconds=a.hold_seconds + b.hold_seconds,
    )
