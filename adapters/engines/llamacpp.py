"""Engine ``llamacpp``: one llama.cpp server per model; its own router is not used.

The program is, in this order: the model's ``command``, the engine's ``command``, ``llama-server`` on PATH, and the
server inside the wheel ``xllamacpp`` behind :mod:`adapters.engines.xllamacpp_server`. It has no sleep on demand: its
idle timer stays off, since the daemon decides who sits where, and ``/slots`` is never asked (it would wake a sleeper).
"""

import asyncio
import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from adapters.engines.declared import with_declared
from adapters.engines.exits import explain
from adapters.engines.gguf import GgufError, Header, read_header, split_files
from adapters.engines.http import Reply, get, looked_at
from adapters.engines.llamacpp_exits import TABLE
from adapters.engines.llamacpp_flags import DEFAULT_ENV, OWNED, Sizing, owned_in, read_sizing
from adapters.engines.llamacpp_size import PROCESS_BYTES, guess_without_header, measure
from adapters.engines.metrics_text import sum_of
from adapters.engines.placing import LOOPBACK, check_program, expand_all, values_of
from scheduler.domain.claims import Footprint
from scheduler.domain.errors import HotseatError, Permanent
from scheduler.domain.model import ModelSpec
from scheduler.domain.reasons import Code, Reason
from scheduler.ports.engine import Answer, CommandLine, Endpoint, LaunchPlan, Probe
from scheduler.ports.launcher import ExitInfo

PROGRAM = "llama-server"
#: What an idle timer of its own would do: weights and KV are dropped, as at level 2.
IDLE_SLEEP_LEVEL = 2
#: Storage bandwidth and packing, until a start was timed; measured 0.25-0.4 GB/s on two cores with a warm page cache.
LOAD_BPS = 250_000_000
START_FIXED_S = 1.0


class LlamaCpp:
    """The adapter. Implements Engine and CountsRequests."""

    @property
    def name(self) -> str:
        """``llamacpp``."""
        return "llamacpp"

    @property
    def device_kinds(self) -> tuple[str, ...]:
        """The CPU."""
        return ("cpu",)

    def owned_flags(self) -> Mapping[str, str]:
        """See :data:`adapters.engines.llamacpp_flags.OWNED`; an empty key = hotseat decides it alone."""
        return OWNED

    def levels(self, spec: ModelSpec) -> tuple[int, ...]:
        """None: it falls asleep only by its own idle timer."""
        return ()

    def served_model(self, spec: ModelSpec) -> str:
        """The alias it is started with."""
        return spec.upstream_model or spec.name

    def command(self, spec: ModelSpec, plan: LaunchPlan) -> CommandLine:
        """Raises Permanent (executable_missing, unknown_flag) and Invalid (unknown_placeholder)."""
        values = values_of(spec, plan)
        given = expand_all((*spec.engine_args, *spec.args), values)
        _refuse_owned(given, spec)
        env = {**DEFAULT_ENV, "LLAMA_API_KEY": plan.api_key} if plan.api_key else dict(DEFAULT_ENV)
        if spec.command:
            return CommandLine(argv=(*expand_all(spec.command, values), *given), env=env)
        own = ("-m", str(model_path(spec)), "--host", LOOPBACK, "--port", str(plan.port), "-a", self.served_model(spec), "--metrics")
        return CommandLine(argv=(*find_program(spec), *own, *given), env=env)

    async def preflight(self, spec: ModelSpec) -> None:
        """Raises Permanent: executable_missing, model_missing, model_unreadable."""
        await asyncio.to_thread(_check, spec)

    async def estimate(self, spec: ModelSpec) -> Footprint:
        """From the model file's header and the flags; see :mod:`adapters.engines.llamacpp_size`."""
        return await asyncio.to_thread(_estimate, spec)

    async def probe(self, endpoint: Endpoint, timeout_s: float) -> Probe:
        """``/health``, and when that says ready ``/props``, which tells who answers and whether it sleeps."""
        return await looked_at(self._look(endpoint, timeout_s), timeout_s)

    async def _look(self, endpoint: Endpoint, timeout_s: float) -> Probe:
        health = await get(endpoint.base_url, endpoint.ready_path or "/health", timeout_s=timeout_s, api_key=endpoint.api_key)
        if health.status == 503:
            return Probe(answer=Answer.STARTING, detail=_message(health) or "loading")
        if health.status != 200:
            return Probe(answer=Answer.BROKEN, detail=f"/health answers {health.status}: {_message(health)}")
        reply = await get(endpoint.base_url, "/props", timeout_s=timeout_s, api_key=endpoint.api_key)
        props = reply.json()
        if reply.status == 503:
            return Probe(answer=Answer.STARTING, detail=_message(reply))
        if reply.status != 200 or not isinstance(props, dict):
            return Probe(answer=Answer.BROKEN, detail=f"/props answers {reply.status}: this is not llama-server")
        return _judge(props, endpoint.served_model)

    async def running(self, endpoint: Endpoint, timeout_s: float) -> int | None:
        """From ``/metrics``, which wakes nobody."""
        try:
            reply = await get(endpoint.base_url, "/metrics", timeout_s=timeout_s, api_key=endpoint.api_key)
        except HotseatError:
            return None
        if reply.status != 200:
            return None
        return sum_of(reply.text(), ("llamacpp:requests_processing", "llamacpp:requests_deferred"))

    def explain_exit(self, exit_info: ExitInfo, log_tail: Sequence[str]) -> Reason:
        """See :mod:`adapters.engines.llamacpp_exits`."""
        return explain(exit_info, log_tail, TABLE, "llama-server")


def xllamacpp_command() -> tuple[str, ...]:
    """How to run our launcher: by path and isolated, so that it is the same from any folder and in any environment."""
    script = Path(__file__).with_name("xllamacpp_server.py")
    return (sys.executable, "-I", str(script.resolve()))


def find_program(spec: ModelSpec) -> tuple[str, ...]:
    """The words that run a llama.cpp server. Raises Permanent ``executable_missing``."""
    if spec.engine_command:
        check_program(spec.engine_command, spec)
        return spec.engine_command
    found = shutil.which(PROGRAM, path=dict(spec.env).get("PATH", os.environ.get("PATH")))
    if found is not None:
        return (os.path.abspath(found),)
    if importlib.util.find_spec("xllamacpp") is not None:
        return xllamacpp_command()
    raise Permanent(
        f"there is no {PROGRAM} on PATH, and xllamacpp is not installed",
        code=Code.EXECUTABLE_MISSING,
        fix="pip install 'hotseat[llamacpp]', or set engines.llamacpp.command to a llama-server",
    )


def model_path(spec: ModelSpec) -> Path:
    """Where the model's file is; a relative path counts from the model's ``cwd``."""
    return Path(os.path.abspath(Path(spec.cwd) / spec.model))


def _refuse_owned(args: Sequence[str], spec: ModelSpec) -> None:
    found = owned_in(args, (name for name, _ in spec.env))
    if found:
        key = OWNED.get(found.partition("=")[0], "")
        fix = f"remove it and use `{key}`" if key else "remove it"
        raise Permanent(f"{found} is set by hotseat itself", code=Code.UNKNOWN_FLAG, fix=fix)


def _message(reply: Reply) -> str:
    body = reply.json()
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return str(message) if message else reply.text()[:80]


def _judge(props: Mapping[str, object], served_model: str) -> Probe:
    """A stranger that answers 200 must not pass, so the alias has to be ours."""
    version = str(props.get("build_info", ""))
    alias = props.get("model_alias", props.get("model_path"))
    if not isinstance(alias, str) or served_model not in [name.strip() for name in alias.split(",")]:
        return Probe(answer=Answer.BROKEN, version=version, detail=f"it serves {alias!r}, expected was {served_model!r}")
    if props.get("is_sleeping") is True:
        return Probe(answer=Answer.ASLEEP, level=IDLE_SLEEP_LEVEL, version=version)
    return Probe(answer=Answer.READY, version=version)


# --- files ------------------------------------------------------------------------------------------------------------


def _check(spec: ModelSpec) -> None:
    if spec.command:
        check_program(spec.command, spec)
    else:
        find_program(spec)
    if spec.model or not spec.command:
        check_model(spec)


def check_model(spec: ModelSpec) -> None:
    """Raises Permanent when a model file is missing, unreadable, cut, or not GGUF. Blocks."""
    if not spec.model:
        raise Permanent(f"{spec.name} has no model file", code=Code.MODEL_MISSING, fix="set `model` to a .gguf file")
    path = model_path(spec)
    for file in split_files(path):
        try:
            header = _header(file)
        except FileNotFoundError:
            raise Permanent(f"there is no model file {file}", code=Code.MODEL_MISSING, fix=_missing_fix(path)) from None
        except OSError as error:
            fix = "let the daemon's user read it (chmod o+r, and o+x on its folders)"
            raise Permanent(f"{file} cannot be opened: {error.strerror}", code=Code.MODEL_UNREADABLE, fix=fix) from error
        except GgufError as error:
            raise Permanent(f"{file} is no GGUF file: {error}", code=Code.MODEL_UNREADABLE, fix=_unreadable_fix(file)) from error
        if header.truncated:
            message = f"{file} is cut: it has {header.file_bytes} bytes, its tensors need {header.end_bytes}"
            raise Permanent(message, code=Code.MODEL_UNREADABLE, fix="fetch it again and compare its size and checksum")


def _missing_fix(path: Path) -> str:
    near = sorted(p.name for p in path.parent.glob("*.gguf"))[:3] if path.parent.is_dir() else []
    return f"correct `model`; that folder has {', '.join(near)}" if near else "correct `model`; it names a .gguf file"


def _unreadable_fix(file: Path) -> str:
    inside = sorted(p.name for p in file.glob("*.gguf"))[:3] if file.is_dir() else []
    return f"name the file in it: {', '.join(inside)}" if inside else "fetch it again; a safetensors folder has to be converted first"


def _header(path: Path) -> Header:
    status = path.stat()
    return _header_of(path, status.st_ino, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=256)
def _header_of(path: Path, _inode: int, _changed_ns: int, _size: int) -> Header:
    """Headers are read once per version of a file: estimates and preflight ask for them again and again."""
    return read_header(path)


def _estimate(spec: ModelSpec) -> Footprint:
    files = split_files(model_path(spec)) if spec.model else []
    sizing = read_sizing((*spec.engine_args, *spec.args), {**DEFAULT_ENV, **dict(spec.env)})
    try:
        headers = [_header(file) for file in files]
        parts = measure(headers[0], sum(file.stat().st_size for file in files), sizing, _extra_bytes(spec, sizing))
    except (OSError, GgufError, IndexError):
        guess = PROCESS_BYTES if _is_refused(spec) else guess_without_header(files)
        return with_declared(Footprint(awake_bytes=guess, weights_bytes=guess * 2 // 3), spec)
    estimated = Footprint(
        awake_bytes=parts.awake,
        start_peak_bytes=max(parts.awake, parts.start_peak),
        weights_bytes=parts.weights,
        start_s=START_FIXED_S + parts.weights / LOAD_BPS,
        stop_s=1.0,
    )
    return with_declared(estimated, spec)


def _is_refused(spec: ModelSpec) -> bool:
    """Whether it would not even be started: whoever asks shall hear why, not that it does not fit."""
    try:
        check_model(spec)
    except Permanent:
        return True
    return False


def _extra_bytes(spec: ModelSpec, sizing: Sizing) -> int:
    """Files loaded beside the model: a draft model with its KV, a projector, adapters."""
    total = 0
    base = Path(spec.cwd)
    for name in (sizing.projector, *sizing.adapters):
        file = base / name
        total += file.stat().st_size if name and file.is_file() else 0
    draft = base / sizing.draft
    if sizing.draft and draft.is_file():
        parts = measure(_header(draft), draft.stat().st_size, sizing)
        total += parts.weights + parts.kv + parts.compute
    return total
