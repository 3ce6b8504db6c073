"""Run as a program: what the stock `openai` client gets from a daemon. ``python openai_calls.py URL MODEL`` prints facts as JSON.

Started once for each major of the client (see tests/integration/test_openai_clients.py), so it uses what both have.
"""

import json
import sys
import warnings
from typing import Any

import openai
from openai import OpenAI

MESSAGES: Any = [{"role": "user", "content": "Say hello."}]
TOKENS = 6


def stream_of(client: OpenAI, model: str) -> dict[str, Any]:
    """A chat stream with usage: pieces of text, how it ended, tokens."""
    pieces: list[str] = []
    finish, tokens = None, 0
    options: Any = {"include_usage": True}
    stream = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=TOKENS, stream=True, stream_options=options)
    for event in stream:
        if event.usage is not None:
            tokens = event.usage.completion_tokens
        for choice in event.choices:
            pieces += [choice.delta.content] if choice.delta.content else []
            finish = choice.finish_reason or finish
    return {"pieces": len(pieces), "finish": finish, "tokens": tokens}


def error_of(client: OpenAI) -> dict[str, Any]:
    """What a wrong model name becomes."""
    try:
        client.chat.completions.create(model="no-such-model", messages=MESSAGES)
    except openai.NotFoundError as error:
        return {"class": type(error).__name__, "code": error.code, "param": error.param, "message": str(error)}
    return {}


def main(url: str, model: str) -> dict[str, Any]:
    """Every call that the daemon serves."""
    client = OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=120)
    raw = client.chat.completions.with_raw_response.create(model=model, messages=MESSAGES, max_tokens=TOKENS)
    chat = raw.parse()
    completion = client.completions.create(model=model, prompt="Once upon a time", max_tokens=TOKENS)
    embeddings = client.embeddings.create(model=model, input=["one", "two"])
    return {
        "version": openai.__version__,
        "models": sorted(entry.id for entry in client.models.list()),
        "one_model": client.models.retrieve(model).id,
        "chat": {
            "role": chat.choices[0].message.role,
            "finish": chat.choices[0].finish_reason,
            "tokens": chat.usage.completion_tokens if chat.usage else 0,
            "served_by": raw.headers.get("x-hotseat-model"),
        },
        "stream": stream_of(client, model),
        "completion": {
            "finish": completion.choices[0].finish_reason,
            "tokens": completion.usage.completion_tokens if completion.usage else 0,
        },
        "embeddings": [len(entry.embedding) for entry in embeddings.data],
        "error": error_of(client),
    }


if __name__ == "__main__":
    warnings.simplefilter("error")
    json.dump(main(*sys.argv[1:]), sys.stdout)
