"""The demo's clients: chat requests, whole and streamed, each counted and timed."""

import asyncio
import json
from dataclasses import dataclass, field

import aiohttp

RETRY_S = 0.2
GIVE_UP_S = 300.0


@dataclass(slots=True)
class Tally:
    """What became of the requests; ``waits`` are the seconds that the daemon held each one."""

    sent: int = 0
    failed: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    tokens: int = 0


class Client:
    """Behaves like an SDK: a refused connection (the daemon is being restarted) is tried again, nothing else is."""

    def __init__(self, url: str, tally: Tally) -> None:
        self._url = url
        self._tally = tally

    async def chat(self, model: str, words: str, *, stream: bool = False, max_tokens: int = 16) -> None:
        """One request. Checks status, token counts and, for a stream, that it ends with [DONE]; never the text."""
        self._tally.sent += 1
        body = {
            "model": model,
            "messages": [{"role": "user", "content": words}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": stream,
        }
        try:
            async with asyncio.timeout(GIVE_UP_S):
                await self._send(body, stream)
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
            self._tally.failed.append(f"{model}: {type(error).__name__}: {error}")

    async def _send(self, body: dict[str, object], stream: bool) -> None:
        while True:
            try:
                async with (
                    aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as client,
                    client.post(f"{self._url}/v1/chat/completions", json=body) as answer,
                ):
                    await self._read(answer, str(body["model"]), stream)
                    return
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(RETRY_S)

    async def _read(self, answer: aiohttp.ClientResponse, model: str, stream: bool) -> None:
        text = await answer.text()
        if answer.status != 200:
            self._tally.failed.append(f"{model}: HTTP {answer.status}: {text[:200]}")
            return
        self._tally.waits.append(float(answer.headers.get("x-hotseat-wait", "0")))
        self._tally.tokens += _tokens_of_stream(text) if stream else int(json.loads(text)["usage"]["completion_tokens"])


def _tokens_of_stream(text: str) -> int:
    """Content chunks of a server-sent event stream. Raises ValueError when it does not end with [DONE]."""
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        raise ValueError("the stream did not end with [DONE]")
    parsed = [json.loads(event) for event in events[:-1]]
    if any("error" in event for event in parsed):
        raise ValueError(f"the stream ended with an error: {events[-2][:200]}")
    return sum(1 for event in parsed if event.get("choices") and event["choices"][0].get("delta", {}).get("content"))
