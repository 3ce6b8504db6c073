"""How an exchange with an engine fails."""

from scheduler.domain.errors import Temporary
from scheduler.domain.lease import Outcome


class EngineLost(Temporary):
    """The engine died, refused, or cut its answer short.

    ``answered``: whether a byte of a response had arrived. ``aborted``: the engine ended the generation itself
    (``finish_reason: "abort"``) because somebody put it away. ``nothing_sent`` of the response to the client is for
    the caller to know.
    """

    code = "engine_lost"

    def __init__(self, message: str, *, answered: bool, aborted: bool = False) -> None:
        super().__init__(message, retry_after_s=1.0)
        self.answered = answered
        self.aborted = aborted

    @property
    def outcome(self) -> Outcome:
        """How the lease ended."""
        return Outcome.ABORTED if self.aborted else Outcome.ENGINE_LOST
