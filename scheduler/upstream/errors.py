"""How an exchange with an engine fails."""

from scheduler.domain.errors import Temporary
from scheduler.domain.lease import Outcome


class EngineLost(Temporary):
    """The engine died, refused, or did not bring its answer to an end.

    ``answered``: whether a byte of a response had arrived. ``aborted``: the generation was ended on purpose, because
    somebody put the engine away; ``cut``: by us, on the scheduler's word, and so not to be tried again. ``resent``: the
    exchange had sent its request twice already, so it has had its one retry.
    """

    code = "engine_lost"

    def __init__(self, message: str, *, answered: bool, aborted: bool = False, cut: bool = False) -> None:
        super().__init__(message, retry_after_s=1.0)
        self.answered = answered
        self.aborted = aborted or cut
        self.cut = cut
        self.resent = False

    @property
    def outcome(self) -> Outcome:
        """How the lease ended."""
        return Outcome.ABORTED if self.aborted else Outcome.ENGINE_LOST

    @property
    def cause(self) -> str:
        """The same for metrics: engine_lost, aborted or cut."""
        if self.cut:
            return "cut"
        return "aborted" if self.aborted else "engine_lost"
