"""A real daemon in a process of its own, over a folder of its own; what tests, benchmarks and people would do with it."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

START_S = 60.0
#: Between two looks at a status that somebody waits for.
LOOK_S = 0.03
MIB = 1 << 20


class RealDaemon:
    """``models`` and ``devices`` are the sections of the configuration as plain data (JSON is YAML)."""

    def __init__(self, folder: Path, models: Mapping[str, Mapping[str, Any]], devices: Mapping[str, int], **settings: Any) -> None:
        self.folder = folder
        self.state_dir = folder / "state"
        self.config = folder / "hotseat.yaml"
        self.settings = settings
        self.models = models
        self.devices = devices
        self.url = ""
        self.log_level = "debug"  # with it, every invariant is checked after every event
        self.program: tuple[str, ...] = ("-P", "-m", "scheduler.cli.main")
        self.process: asyncio.subprocess.Process | None = None

    def write_config(self) -> None:
        """(Re)write the configuration file."""
        declared = [{"id": name, "kind": "cpu", "memory": size} for name, size in self.devices.items()]
        whole = {
            "listen": "127.0.0.1:0",
            "state_dir": str(self.state_dir),
            "devices": {"declared": declared},
            "models": self.models,
            **self.settings,
        }
        self.config.write_text(json.dumps(whole), encoding="utf-8")

    async def start(self) -> None:
        """Start it and wait until it says where it listens."""
        self.write_config()
        command = [sys.executable, *self.program, "serve", "--log-level", self.log_level, "--config", str(self.config)]
        with (self.folder / "daemon.out").open("ab") as sink:
            self.process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=sink, env=self.environment()
            )
        assert self.process.stdout is not None
        async with asyncio.timeout(START_S):
            line = (await self.process.stdout.readline()).decode()
        found = re.search(r"http://\S+:\d+", line)
        if found is None:
            raise AssertionError(f"the daemon said {line!r}\n{self.output()}")
        self.url = found.group(0).rstrip(",.")

    def environment(self) -> dict[str, str]:
        """Of the daemon, and of whoever speaks to it."""
        return {k: v for k, v in os.environ.items() if not k.startswith("HOTSEAT_")}

    def output(self) -> str:
        """What it wrote to its standard error."""
        return (self.folder / "daemon.out").read_text(errors="replace")[-6000:]

    async def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> None:
        """Stop every engine, then the daemon; afterwards nothing with its token may live."""
        if self.process is None or self.process.returncode is not None:
            return
        await asyncio.gather(*(self.act("stop", model, now=True) for model in self.models))
        await self.terminate()

    async def terminate(self) -> int:
        """TERM, as `systemctl stop` sends it: engines stay. Returns the exit code."""
        assert self.process is not None
        self.process.terminate()
        async with asyncio.timeout(START_S):
            code = await self.process.wait()
        self.check_log()
        return code

    def check_log(self) -> None:
        """What the daemon's checks of itself have found. Raises AssertionError with it."""
        lines = (self.folder / "daemon.out").read_text(errors="replace").splitlines()
        assert self.log_level != "debug" or any("invariants are checked" in line for line in lines)
        bugs = ("invariant violated", "was not carried through", "the check itself failed")
        wrong = [line for line in lines if any(bug in line for bug in bugs)]
        assert not wrong, "\n".join(wrong)

    async def cli(self, *words: str) -> tuple[int, str, str]:
        """`hotseat WORDS` as a person would type it: exit code, standard output, standard error."""
        environment = {**self.environment(), "HOTSEAT_STATE_DIR": str(self.state_dir), "COLUMNS": "100"}
        command = [sys.executable, "-P", "-m", "scheduler.cli.main", *words]
        pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*command, stdin=nothing, stdout=pipe, stderr=pipe, env=environment)
        try:
            async with asyncio.timeout(START_S):
                out, err = await process.communicate()
        except TimeoutError:
            process.kill()
            out, err = await process.communicate()
            raise AssertionError(f"hotseat {' '.join(words)} does not end: {out.decode()!r} {err.decode()!r}") from None
        return process.returncode or 0, out.decode(), err.decode()

    # --- talking to it ----------------------------------------------------------------------------------------------

    async def get(self, path: str) -> Any:
        """GET a JSON document."""
        async with aiohttp.ClientSession() as client, client.get(self.url + path) as answer:
            return await answer.json()

    async def text(self, path: str) -> str:
        """GET a text."""
        async with aiohttp.ClientSession() as client, client.get(self.url + path) as answer:
            return await answer.text()

    async def status(self) -> dict[str, Any]:
        """GET status."""
        found: dict[str, Any] = await self.get("/control/v1/status")
        return found

    async def model(self, name: str) -> dict[str, Any]:
        """One model of the status."""
        return next(m for m in (await self.status())["models"] if m["name"] == name)

    async def act(self, verb: str, model: str, *, wait_s: float = 60.0, **body: Any) -> dict[str, Any]:
        """An action over the control socket, until it has ended."""
        connector = aiohttp.UnixConnector(path=str(self.state_dir / "control.sock"))
        url = f"http://hotseat/control/v1/models/{model}/{verb}?wait={wait_s:g}"
        async with aiohttp.ClientSession(connector=connector) as client, client.post(url, json=body or None) as answer:
            found: dict[str, Any] = await answer.json()
            return found

    async def chat(self, model: str, *, stream: bool = False, headers: Mapping[str, str] | None = None, **body: Any) -> tuple[int, str]:
        """(status, text) of one chat request."""
        whole = {"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": stream, "max_tokens": 8, **body}
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(timeout=timeout) as client,
            client.post(f"{self.url}/v1/chat/completions", json=whole, headers=headers) as answer,
        ):
            return answer.status, await answer.text()

    async def events(self, kind: str = "", subject: str = "") -> list[dict[str, Any]]:
        """The event feed from the beginning, filtered."""
        items: list[dict[str, Any]] = (await self.get("/control/v1/events?after=0&limit=1000"))["items"]
        return [e for e in items if (not kind or e["kind"] == kind) and (not subject or e["subject"] == subject)]

    async def until(self, model: str, *phases: str, within_s: float = 30.0) -> dict[str, Any]:
        """Wait until a model is in one of ``phases``."""
        return await self.until_model(model, lambda found: found["phase"] in phases, within_s=within_s)

    async def until_model(self, model: str, holds: Callable[[dict[str, Any]], bool], *, within_s: float = 30.0) -> dict[str, Any]:
        """Wait until something holds of a model's status, which is looked at again and again."""
        found: dict[str, Any] = {}
        try:
            async with asyncio.timeout(within_s):
                while True:
                    found = await self.model(model)
                    if holds(found):
                        return found
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise AssertionError(f"after {within_s:g} s still {found}\n{self.output()}") from None

    async def until_device(self, device: str, **facts: object) -> dict[str, Any]:
        """Wait until a device has these facts, which are looked at again and again."""
        found: dict[str, Any] = {}
        try:
            async with asyncio.timeout(30.0):
                while True:
                    found = await self.get(f"/control/v1/devices/{device}")
                    if all(found[name] == value for name, value in facts.items()):
                        return found
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise AssertionError(f"after 30 s still {found}\n{self.output()}") from None

    def processes(self) -> Sequence[int]:
        """Every live process on this machine that was started by a daemon over this state directory, or below one."""
        mine = str(self.state_dir).encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if mine in (entry / "environ").read_bytes() and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    found.append(int(entry.name))
            except OSError:
                continue
        return found
