"""The one family of errors. Each carries a stable ``code``, a sentence, and the remedy."""


class HotseatError(Exception):
    """Root of all errors of hotseat.

    ``code`` is part of the documented interface; ``message`` names the cause with numbers;
    ``fix`` is the next thing to do, empty when there is nothing to be done.
    """

    code: str = "internal"

    def __init__(self, message: str, *, code: str | None = None, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        if code is not None:
            self.code = code


class Temporary(HotseatError):
    """May succeed later; ``retry_after_s`` says when to try again."""

    code = "temporary"

    def __init__(self, message: str, *, retry_after_s: float, code: str | None = None, fix: str = "") -> None:
        super().__init__(message, code=code, fix=fix)
        self.retry_after_s = retry_after_s


class Permanent(HotseatError):
    """Will not succeed until somebody changes something."""

    code = "permanent"


class Conflict(HotseatError):
    """The thing is in a state that does not allow this."""

    code = "conflict"


class NotFound(HotseatError):
    """No such thing."""

    code = "not_found"


class Invalid(HotseatError):
    """The input is wrong."""

    code = "invalid"


class InvariantViolated(HotseatError):
    """A bug: one of the named invariants of docs/architecture.md does not hold."""

    code = "invariant_violated"
