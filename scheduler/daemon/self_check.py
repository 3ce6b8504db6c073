"""The named invariants, looked at after every event while the log level is debug."""

import logging

from scheduler.domain.errors import InvariantViolated
from scheduler.orchestrator.effects import Effect
from scheduler.orchestrator.events import Happening
from scheduler.orchestrator.invariants import Watch
from scheduler.orchestrator.state import State

log = logging.getLogger(__name__)


class SelfCheck:
    """Logs every violation as an error and goes on: a daemon that stops because it doubts itself helps nobody.

    Silent until ``begin``: what recovery does is no step of the reducer.
    """

    def __init__(self) -> None:
        self._watch: Watch | None = None

    def begin(self, state: State) -> None:
        """From now on; does nothing unless debug messages are wanted (``--log-level debug``)."""
        if log.isEnabledFor(logging.DEBUG):
            log.debug("invariants are checked after every event")
            self._watch = Watch(state)

    def effects(self, effects: list[Effect]) -> None:
        """The effects of the next step."""
        if self._watch is not None:
            self._watch.effects(effects)

    def observe(self, event: Happening, state: State) -> None:
        """The step itself."""
        if self._watch is None:
            return
        try:
            self._watch.observe(event, state)
        except InvariantViolated as error:
            log.error("invariant violated: %s", error.message, extra={"event": type(event).__name__})
        except Exception:
            log.exception("the check itself failed after %s", type(event).__name__)
