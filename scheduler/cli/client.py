"""Finds the daemon and talks HTTP to it, with the standard library only: the command must start fast."""

import http.client
import json
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from scheduler.cli.answers import ANYTHING, PAGE, Shape, has_shape, is_problem
from scheduler.cli.failure import NOT_PERMITTED, USAGE, CliError, DaemonUnreachable, exit_of

PREFIX = "/control/v1"
SYSTEM_STATE_DIR = "/var/lib/hotseat"
DEFAULT_URL = "http://127.0.0.1:11500"
CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 15.0
PAGE_SIZE = 1000
MAX_ANSWER_BYTES = 64 << 20


class Target(NamedTuple):
    """Where a daemon may be: a socket path, or host and port. ``label`` is how people write it."""

    label: str
    path: str = ""
    host: str = ""
    port: int = 0


def user_state_dir(home: str) -> str:
    """The state directory of a daemon that a user runs for himself."""
    return f"{home}/.local/state/hotseat"


def targets(url: str | None, state_dir: str | None, environ: Mapping[str, str], euid: int, home: str) -> list[Target]:
    """Addresses to try, in order. What was named explicitly is the only one; raises CliError (usage) for a bad URL.

    Without a word from the user: the control socket of this user's daemon, that of the machine's, then loopback TCP.
    """
    chosen = url or (None if state_dir else environ.get("HOTSEAT_URL"))
    if chosen:
        return [_from_url(chosen)]
    folder = state_dir or environ.get("HOTSEAT_STATE_DIR")
    if folder:
        return [_socket_in(folder)]
    folders = [SYSTEM_STATE_DIR] if euid == 0 else [user_state_dir(home), SYSTEM_STATE_DIR]
    return [*map(_socket_in, folders), _from_url(DEFAULT_URL)]


def _socket_in(folder: str) -> Target:
    path = str(Path(folder).expanduser() / "control.sock")
    return Target(path, path=path)


def _from_url(url: str) -> Target:
    if url.startswith("unix:"):
        path = "/" + url.removeprefix("unix:").lstrip("/")
        return Target(path, path=path)
    fix = "write it as http://HOST:PORT or unix:/PATH/control.sock"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise CliError(USAGE, f"not a URL: {url!r}", fix=fix) from None
    if parts.scheme != "http" or not host or parts.path not in ("", "/") or parts.query or parts.username is not None:
        raise CliError(USAGE, f"not a daemon's URL: {url!r}", fix=fix)
    return Target(f"http://{parts.netloc}", host=host, port=port or 80)


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket or TCP; connecting and answering have time limits of their own."""

    def __init__(self, target: Target, answer_timeout_s: float) -> None:
        super().__init__(target.host or "localhost", target.port or 80, timeout=CONNECT_TIMEOUT_S)
        self._target, self._answer_timeout_s = target, answer_timeout_s

    def connect(self) -> None:
        if self._target.path:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(CONNECT_TIMEOUT_S)
            self.sock.connect(self._target.path)
        else:
            super().connect()
        self.sock.settimeout(self._answer_timeout_s)


class Daemon:
    """The daemon behind the first of ``candidates`` that accepts a connection; looked for anew on every request."""

    def __init__(self, candidates: Sequence[Target]) -> None:
        self._candidates = candidates
        self.answered: Target | None = None  # who answered last

    def get(self, path: str, shape: Shape = ANYTHING, *, wait_s: float = 0.0) -> Any:
        """GET ``path`` (below /control/v1) as JSON of ``shape``. Raises CliError; ``wait_s`` = how long the daemon may hold it."""
        return self._json("GET", PREFIX + path, None, shape, wait_s)

    def pages(self, path: str) -> list[Any]:
        """All entries of the list at ``path``. Raises CliError."""
        page = self.get(f"{path}?limit={PAGE_SIZE}", PAGE)
        items = list(page["items"])
        while page["has_more"]:
            page = self.get(f"{path}?limit={PAGE_SIZE}&after={quote(page['after'] or '')}", PAGE)
            items += page["items"]
        return items

    def post(self, path: str, body: Mapping[str, object], shape: Shape = ANYTHING, *, wait_s: float = 0.0) -> Any:
        """POST ``body`` to ``path`` (below /control/v1). Raises CliError; never sent twice."""
        return self._json("POST", PREFIX + path, json.dumps(body).encode(), shape, wait_s)

    def _json(self, method: str, path: str, body: bytes | None, shape: Shape, wait_s: float) -> Any:
        status, raw, label = self._exchange(method, path, body, wait_s)
        try:
            answer = json.loads(raw)
        except (ValueError, RecursionError):
            answer = None
        if not (is_problem(answer) if status >= 400 else has_shape(answer, shape)):
            raise DaemonUnreachable(f"something else than hotseat answers at {label} (HTTP {status})", fix="check --url and HOTSEAT_URL")
        if status < 400:
            return answer
        code, detail = str(answer.get("code", "")), str(answer.get("detail", f"HTTP {status}"))
        raise CliError(exit_of(status, code), detail, fix=str(answer.get("fix", "")))

    def _exchange(self, method: str, path: str, body: bytes | None, wait_s: float) -> tuple[int, bytes, str]:
        connection, target = self._connect(method, ANSWER_TIMEOUT_S + wait_s)
        try:
            headers = {"Accept": "application/json", "Connection": "close"}
            if body is not None:
                headers["Content-Type"] = "application/json"
            connection.request(method, path, body=body, headers=headers)
            response = connection.getresponse()
            return response.status, _whole(response), target.label
        except TimeoutError:
            limit = ANSWER_TIMEOUT_S + wait_s
            message = f"the daemon at {target.label} accepts connections but does not answer within {limit:.0f} s"
            raise DaemonUnreachable(message, fix="look at its log; restart it if it hangs (engines keep running)") from None
        except (OSError, http.client.HTTPException) as error:
            message = f"the daemon at {target.label} broke off: {_why(error)}"
            raise DaemonUnreachable(message, fix="try again; hotseat doctor tells more") from None
        finally:
            connection.close()

    def _connect(self, method: str, answer_timeout_s: float) -> tuple[_Connection, Target]:
        tried = []
        for target in self._candidates:
            connection = _Connection(target, answer_timeout_s)
            try:
                connection.connect()
            except PermissionError:
                connection.close()
                tried.append(f"tried {target.label}: permission denied")
                if method != "GET":  # another address would only answer that changes are not accepted there
                    fix = "run it as root or as the daemon's user, or join the group hotseat"
                    raise CliError(NOT_PERMITTED, f"no permission to open {target.label}", fix=fix) from None
            except OSError as error:
                connection.close()
                tried.append(f"tried {target.label}: {_why(error)}")
            else:
                self.answered = target
                return connection, target
        fix = "start it with: hotseat serve  (hotseat doctor checks this machine)"
        raise DaemonUnreachable("no daemon answers", detail=tuple(tried), fix=fix)


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, http.client.IncompleteRead):
        return "its answer ended half way"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


def _whole(response: http.client.HTTPResponse) -> bytes:
    """The answer's body. Raises IncompleteRead when it ends early: ``read`` with a limit does not tell.

    Nor does the library mind a head that ends early. What is left then has no length, and a daemon always says one.
    """
    raw = response.read(MAX_ANSWER_BYTES)
    headless = response.length is None and not response.chunked and not raw
    if headless or (response.length and len(raw) < MAX_ANSWER_BYTES):
        raise http.client.IncompleteRead(raw, response.length)
    return raw


def model_path(name: str, rest: str = "") -> str:
    """``/models/NAME`` + ``rest``; a slash in the name becomes %2F."""
    return f"/models/{quote(name, safe='')}{rest}"


def device_path(device: str) -> str:
    """``/devices/ID``; a slash in what was typed becomes %2F."""
    return f"/devices/{quote(device, safe='')}"


def host_name(target: Target | None) -> str:
    """How to call the machine that answered: this one's name, or the host of the URL."""
    if target is None or target.path or target.host in ("127.0.0.1", "localhost", "::1"):
        return os.uname().nodename
    return target.host
