"""How a command ends: exit codes (interfaces.md section 2), and the one exception that carries them to main."""

OK = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
NOT_FOUND = 4
NOT_PERMITTED = 5
CONFLICT = 6
REFUSED = 7
INTERRUPTED = 130
PIPE_CLOSED = 141

_BY_STATUS = {400: USAGE, 403: NOT_PERMITTED, 404: NOT_FOUND, 409: CONFLICT, 507: REFUSED}
_BY_CODE = {
    "does_not_fit": REFUSED,
    # An action can fail with what a request is refused with: the same code means the same exit.
    "conflict": CONFLICT,
    "sleep_unsupported": CONFLICT,
    "model_disabled": CONFLICT,
    "not_found": NOT_FOUND,
    "model_not_found": NOT_FOUND,
}


class CliError(Exception):
    """Ends a command: ``exit_code``, what is wrong, further lines of detail, and what to do (``fix``, may be empty)."""

    def __init__(self, exit_code: int, message: str, *, detail: tuple[str, ...] = (), fix: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.message = message
        self.detail = detail
        self.fix = fix


class DaemonUnreachable(CliError):
    """No daemon answers at any address that was tried."""

    def __init__(self, message: str, *, detail: tuple[str, ...] = (), fix: str = "") -> None:
        super().__init__(UNREACHABLE, message, detail=detail, fix=fix)


def exit_of(status: int, code: str) -> int:
    """The exit code for an HTTP status and a problem code."""
    return _BY_CODE.get(code, _BY_STATUS.get(status, FAILED))
