"""The golden answer: what a model says to one fixed question before it ever slept, and must say after each wake.

An engine that lost its weights, its scales or its draft answers 200 to everything and produces text: only its text tells.
The question is shorter than a block of KV cache (16 tokens), so that no prefix cache can answer a part of it: what is
compared is computed in the same way each time.
"""

import json
import math
from collections.abc import Mapping, Sequence
from enum import StrEnum

from adapters.engines.http import CallFailed, Reply, post
from adapters.engines.vllm_state import answer_of, words
from scheduler.domain.errors import Permanent, Temporary
from scheduler.domain.reasons import Code
from scheduler.ports.engine import Endpoint

PROMPT = "1 2 3 4 5 6 7"
TOKENS = 8
#: Numbers of an embedding that are kept; two of the same text point the same way in any part of them.
VECTOR_LENGTH = 256
SAME_COSINE = 0.999
_SHOWN = 60
#: Answers that say "not this kind of model"; everything else is a failure of the engine.
_NOT_THIS_WAY = (400, 404, 405, 422, 501)


class Way(StrEnum):
    """How a model can be asked."""

    COMPLETION = "completion"
    EMBEDDING = "embedding"


async def ask(endpoint: Endpoint, timeout_s: float, code: Code, *, tokens: int = TOKENS, way: Way | None = None) -> str:
    """Its answer, as it is compared and stored; empty when it can be asked in no way (a classifier, a transcriber).

    With ``way`` it is asked only so. Raises Temporary with ``code`` when it does not answer, and Permanent ``output_wrong`` when
    what it answers is no answer.
    """
    for each in Way if way is None else (way,):
        path, body = _question(endpoint, each, tokens)
        try:
            reply = await post(endpoint.base_url, path, body, timeout_s=timeout_s, api_key=endpoint.api_key)
        except CallFailed as error:
            raise Temporary(f"it does not answer a request: {error.message}", retry_after_s=1.0, code=code) from error
        if reply.status in _NOT_THIS_WAY:
            continue
        if reply.status != 200:
            raise Temporary(f"a request is answered with {reply.status}: {words(reply)}", retry_after_s=1.0, code=code)
        return _text(reply, code) if each is Way.COMPLETION else _vector(reply)
    return ""


def way_of(golden: str) -> Way | None:
    """How ``golden`` was asked for; None when it is no golden answer."""
    stored = _stored(golden)
    return next((way for way in Way if way in stored), None)


def is_same(golden: str, answer: str) -> bool:
    """Texts must be equal; embeddings must point the same way."""
    one, other = _stored(golden), _stored(answer)
    if Way.EMBEDDING in one:
        return _cosine(one[Way.EMBEDDING], other.get(Way.EMBEDDING)) >= SAME_COSINE
    return Way.COMPLETION in one and one == other


def shown(answer: str) -> str:
    """A few words of an answer, for people."""
    stored = _stored(answer)
    text = repr(stored.get(Way.COMPLETION)) if Way.COMPLETION in stored else str(stored.get(Way.EMBEDDING, answer))
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _question(endpoint: Endpoint, way: Way, tokens: int) -> tuple[str, Mapping[str, object]]:
    if way is Way.EMBEDDING:
        return "/v1/embeddings", {"model": endpoint.served_model, "input": PROMPT}
    greedy = {"max_tokens": tokens, "temperature": 0, "seed": 0, "ignore_eos": True, "stream": False}
    return "/v1/completions", {"model": endpoint.served_model, "prompt": PROMPT, **greedy}


def _text(reply: Reply, code: Code) -> str:
    choices = answer_of(reply).get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    text = first.get("text") if isinstance(first, dict) else None
    if not isinstance(first, dict) or not isinstance(text, str):
        raise Permanent(f"a completion is answered with 200, but without text: {reply.text()[:_SHOWN]!r}", code=Code.OUTPUT_WRONG)
    if first.get("finish_reason") == "abort":
        raise Temporary("it aborted a request that nobody aborted", retry_after_s=1.0, code=code)
    return json.dumps({Way.COMPLETION: text})


def _vector(reply: Reply) -> str:
    data = answer_of(reply).get("data")
    first = data[0] if isinstance(data, list) and data else None
    numbers = first.get("embedding") if isinstance(first, dict) else None
    if not isinstance(numbers, list) or not numbers or not all(isinstance(each, int | float) for each in numbers):
        raise Permanent(f"an embedding is answered with 200, but without numbers: {reply.text()[:_SHOWN]!r}", code=Code.OUTPUT_WRONG)
    return json.dumps({Way.EMBEDDING: [round(float(each), 6) for each in numbers[:VECTOR_LENGTH]]})


def _stored(answer: str) -> Mapping[str, object]:
    try:
        stored = json.loads(answer)
    except ValueError:
        return {}
    return stored if isinstance(stored, dict) else {}


def _cosine(one: object, other: object) -> float:
    """0 when either is no direction."""
    if not isinstance(one, Sequence) or not isinstance(other, Sequence) or len(one) != len(other):
        return 0.0
    size = math.hypot(*one) * math.hypot(*other)
    return sum(a * b for a, b in zip(one, other, strict=True)) / size if size else 0.0
