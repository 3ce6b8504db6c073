"""Knobs of the fake engine process: the behaviour core of ``tests/support/behaviour.py``, and how it talks.

Everything travels as one JSON argument, so that a launcher, a configuration file and a test say it the same way.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from scheduler.domain.reasons import Code
from tests.support.behaviour import Behaviour, Child, StartFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """How it answers inference requests; all of it can be changed while it runs (``POST /admin/speech``)."""

    tokens: int = 8  # of every answer, unless the request's max_tokens is smaller
    first_token_s: float = 0.0
    token_s: float = 0.0
    error_status: int = 0  # answer with this status instead
    errors: int = 0  # so many times; 0 with error_status = always
    hold: bool = False  # accept the request and never answer
    cuts_before_first_byte: int = 0  # so many requests lose their connection before a byte was sent
    cut_after_chunks: int | None = None  # a stream loses its connection after n chunks; the process lives on
    die_before_first_byte: bool = False  # the process ends (status 9) instead of answering
    die_after_chunks: int | None = None  # the process ends (status 9) after n chunks of a stream
    abort_on_term: bool = False  # TERM ends what is under way with finish_reason "abort", [DONE] and 200, as vLLM does
    holds_while_asleep: bool = True  # requests to a sleeper wait for its wake; else they are refused with 503
    dimensions: int = 4  # of embeddings


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Everything that a fake engine can be told at its start."""

    behaviour: Behaviour = field(default_factory=lambda: Behaviour(start_s=0.05, listens_early=True, awake_bytes=0, residue_bytes={}))
    speech: Speech = field(default_factory=Speech)
    starts_file: str = ""  # counts starts, so that the first, second, ... can go wrong in ways of their own
    stranger: bool = False  # answers 200 to everything, but is no engine
    erases_environment: bool = False  # overwrites /proc/PID/environ, token and all
    child_session: bool = False  # children leave the session
    says: str = ""  # printed at the start

    def to_json(self) -> str:
        """As the value of ``--knobs``."""
        return json.dumps(asdict(self))


def knobs_from_json(text: str) -> Knobs:
    """The inverse of :meth:`Knobs.to_json`; keys may be left out."""
    data: dict[str, Any] = json.loads(text)
    behaviour = data.pop("behaviour", None)
    speech = data.pop("speech", None)
    if behaviour is not None:
        data["behaviour"] = behaviour_from(behaviour)
    if speech is not None:
        data["speech"] = Speech(**speech)
    return Knobs(**data)


def behaviour_from(data: dict[str, Any]) -> Behaviour:
    """A Behaviour from JSON: levels are integers again, failures are failures."""
    data = dict(data)
    for key in ("residue_bytes", "host_bytes"):
        if key in data:
            data[key] = {int(level): size for level, size in data[key].items()}
    for key in ("fails_always", "preflight"):
        if data.get(key) is not None:
            data[key] = _failure(data[key])
    if "start_failures" in data:
        data["start_failures"] = tuple(_failure(each) for each in data["start_failures"])
    if "children" in data:
        data["children"] = tuple(Child(**each) for each in data["children"])
    for key in ("levels", "garbage_levels"):
        if key in data:
            data[key] = tuple(data[key])
    return Behaviour(**data)


def _failure(data: dict[str, Any]) -> StartFailure:
    return StartFailure(**{**data, "code": Code(data["code"])})
