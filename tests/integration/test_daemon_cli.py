"""The commands a person types, as processes, against a real daemon."""

import asyncio
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from adapters.engines.demo_model import demo_model_path
from adapters.engines.llamacpp import xllamacpp_command
from tests.support.fake_knobs import Speech
from tests.support.house import House, alive, fake, house, sleeper
from tests.support.real import MIB, RealDaemon

SEAT = {"cpu0": 256 * MIB}


async def said(daemon: RealDaemon, words: str, *, code: int = 0) -> str:
    """What `hotseat WORDS` prints, on either stream; it has to end with ``code``."""
    found, out, err = await daemon.cli(*words.split())
    assert found == code, (words, found, out, err)
    return out + err


async def test_a_day_in_words(tmp_path: Path) -> None:
    models = sleeper("nap", mib=60, aliases=["n"]) | fake("plain")
    async with house(tmp_path, models, SEAT) as daemon:
        assert "2 stopped: nap plain" in await said(daemon, "status")
        assert re.match(r"started plain on cpu0: \d+ MiB in \d", await said(daemon, "wake plain"))
        assert "undo: hotseat stop nap" in await said(daemon, "wake n")
        status = (await said(daemon, "status")).splitlines()
        assert "2 models: 2 awake" in status[0]
        seats = [line.split()[:3] for line in status if line.startswith(("nap", "plain"))]
        assert seats == [["nap", "awake", "cpu0"], ["plain", "awake", "cpu0"]]

        assert re.match(r"slept nap at level 1: \d+ MiB freed in \d", await said(daemon, "sleep nap"))
        assert "nap  asleep 1  on cpu0" in await said(daemon, "status nap")
        assert re.match(r"woke nap on cpu0: \d+ MiB in \d", await said(daemon, "wake nap"))
        for words in ("sleep plain", "sleep nap --level 2"):
            assert "sleep_unsupported" in await said(daemon, words, code=6)

        before = await daemon.pid("plain")
        assert (await said(daemon, "restart plain")).startswith("restarted plain on cpu0 in ")
        assert await daemon.pid("plain") != before
        assert not alive(before)
        assert "freed in" in await said(daemon, "stop plain")
        assert "plain is already stopped; nothing was done" in await said(daemon, "stop plain")
        starts = (await daemon.get("/control/v1/models/plain"))["starts"]
        assert [(start["result"], start["duration_s"] is not None) for start in starts] == [("stopped", True)] * 2


async def test_what_can_be_looked_at(tmp_path: Path) -> None:
    async with house(tmp_path, sleeper("nap", aliases=["n"]) | fake("plain"), SEAT) as daemon:
        for verb in ("wake", "sleep", "wake"):
            assert (await daemon.act(verb, "nap"))["state"] == "done"
        listed = (await said(daemon, "models ls")).splitlines()
        assert [line.split()[:3] for line in listed[1:]] == [["nap", "command", "awake"], ["plain", "command", "stopped"]]
        assert f"configured  {daemon.config}:1" in await said(daemon, "models show n")
        assert "fake: listening on" in await said(daemon, "logs nap")
        assert "nap started in" in await said(daemon, "logs -n 100")
        assert "started  nap" in await said(daemon, "events -n 50")
        page = json.loads(await said(daemon, "story nap --json"))
        path = ["launching", "awake", "draining", "falling_asleep", "asleep", "waking", "awake"]
        assert [entry["to"] for entry in page["items"]] == path
        assert "ok    daemon" in await said(daemon, "doctor")
        assert json.loads(await said(daemon, "status --json")).keys() == (await daemon.status()).keys()
        assert "no model named 'nobody'" in await said(daemon, "wake nobody", code=4)


async def test_cutting_a_stream_short_is_for_those_who_say_now(tmp_path: Path) -> None:
    async with house(tmp_path, fake("a", speech=Speech(tokens=1000, token_s=0.05)), SEAT) as daemon:
        streaming = asyncio.create_task(daemon.chat("a", stream=True, max_tokens=1000))
        await daemon.until_model("a", lambda a: a["active"] == 1)
        waiting = asyncio.create_task(daemon.cli("stop", "a"))
        await daemon.until("a", "draining")
        progress = (await daemon.get("/control/v1/actions/a1"))["progress"]
        assert (progress["phase"], progress["text"]) == ("draining", ""), "why the request had to wait is not why this one waits"
        assert ", 1 request cut short; undo: " in await said(daemon, "stop a --now")
        assert "cut short" not in "".join(str(part) for part in await waiting)
        status, text = await streaming
        assert (status, "[DONE]" in text) == (200, False)
        assert '"code": "engine_lost"' in text
        assert (await daemon.status())["interrupted"] == 1


async def test_whoever_makes_room_is_named(tmp_path: Path) -> None:
    async with house(tmp_path, fake("a") | sleeper("nap") | fake("b", mib=150), {"cpu0": 200 * MIB}) as daemon:
        for name in ("a", "nap"):
            await said(daemon, f"wake {name}")
        lines = (await said(daemon, "wake b")).splitlines()  # with its progress before them, where it takes longer than two seconds
        assert any(line.startswith("started b on cpu0: ") for line in lines)
        assert sorted(line for line in lines if line.startswith("  also")) == ["  also: a stopped", "  also: nap stopped"]


async def test_a_nearly_full_disk_is_said_and_serving_goes_on(tmp_path: Path) -> None:
    async with house(tmp_path, fake("a"), SEAT, disk={"min_free": "1000TiB"}) as daemon:
        assert (await daemon.chat("a"))[0] == 200
        lines = (await said(daemon, "status")).splitlines()
        (complaint,) = [n for n, line in enumerate(lines) if "less than disk.min_free" in line]
        assert lines[complaint].startswith("! disk low ")
        assert "fix: free space there" in lines[complaint + 1]
        assert "disk_low" in await said(daemon, "events")
        assert 'hotseat_degraded{code="disk_low"} 1' in await daemon.text("/metrics")


async def failure_card(daemon: House, model: str) -> dict[str, str]:
    """The card of a model whose start has failed; between two tries there is none, so it is asked for again."""
    while True:
        await daemon.until(model, "backoff", "failed")
        rows = await card(daemon, model)
        if "fix" in rows:
            return rows


async def card(daemon: House, model: str) -> dict[str, str]:
    """The rows of a model's card by their labels."""
    rows: dict[str, str] = {}
    label = ""
    for line in (await said(daemon, f"status {model}")).splitlines()[1:]:
        label = line[:12].strip() or label
        rows[label] = f"{rows.get(label, '')} {line[12:].strip()}".strip()
    return rows


async def test_a_start_that_fails_has_a_card(tmp_path: Path) -> None:
    hungry: dict[str, Any] = fake("hungry", mib=80)
    words = [word if word == "${port}" else shlex.quote(word) for word in hungry["hungry"]["command"]]
    hungry["hungry"]["command"] = ["/bin/sh", "-c", f"ulimit -v 60000; exec {' '.join(words)}"]
    nothing = {"devices": {"ids": ["cpu0"]}, "footprint": {"weights": MIB, "overhead": 0, "kv_min": 0}}
    models: dict[str, Any] = (
        hungry
        | {"gone": {"engine": "llamacpp", "model": str(tmp_path / "no.gguf"), "devices": {"ids": ["cpu0"]}}}
        | {"unbuilt": {"engine": "command", "command": ["/nonexistent/engine", "--port", "${port}"], **nothing}}
        | {"talks": {"engine": "command", "command": ["/bin/sh", "-c", "echo last words >&2; exit 3", "${port}"], **nothing}}
        | {"huge": {**fake("huge")["huge"], "footprint": {"weights": "9GiB", "overhead": 0, "kv_min": 0}}}
        | fake("good")
    )
    async with house(tmp_path, models, SEAT) as daemon:
        assert (await daemon.chat("good"))[0] == 200
        for model, code, hint in (
            ("gone", "model_missing", "correct `model`"),
            ("unbuilt", "executable_missing", "correct `command`"),
        ):
            assert "model_failed" in await said(daemon, f"wake {model}", code=1)
            rows = await failure_card(daemon, model)
            assert rows["why"].startswith(f"{code}: ")
            assert hint in rows["fix"]
            assert f"hotseat restart {model}" in rows["next"]
        assert "does_not_fit: huge needs 9.0 GiB" in await said(daemon, "wake huge", code=7)
        card = " ".join((await said(daemon, "status huge")).split())
        assert "why does_not_fit: huge needs 9.0 GiB" in card, "nobody waits any more, and the card still says it"
        assert "next change the configuration" in card

        for model in ("hungry", "talks"):
            await said(daemon, f"wake {model} --no-wait")
        rows = await failure_card(daemon, "hungry")
        assert rows["why"].startswith("host_oom: it could not get the host memory")
        assert rows["log"].endswith("Cannot allocate memory")
        assert "host_oom" in rows["starts"]
        rows = await failure_card(daemon, "talks")
        assert rows["why"].startswith("crashed: its command ended with exit status 3")
        assert rows["log"] == "last words"
        assert await said(daemon, "logs talks") == "last words\n"
        await asyncio.gather(*(daemon.until(model, "failed") for model in ("hungry", "talks")))
        status = (await said(daemon, "status")).splitlines()
        assert "4 failed" in status[0]
        assert status[1].startswith("! ")
        assert (await daemon.chat("good"))[0] == 200


@pytest.mark.real_llamacpp
async def test_a_secret_in_an_engines_last_words_is_neither_shown_nor_kept(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("error: wrong --api-key sk-verysecret\n")
    words = {"engine": "command", "command": ["/bin/sh", "-c", f"cat {tmp_path}/words; exit 3", "${port}"]}
    nothing = {"devices": {"ids": ["cpu0"]}, "footprint": {"weights": MIB, "overhead": 0, "kv_min": 0}}
    async with house(tmp_path, {"blab": words | nothing}, SEAT) as daemon:
        told = [await said(daemon, "wake blab", code=1), *(await failure_card(daemon, "blab")).values(), await said(daemon, "logs blab")]
        assert "wrong --api-key [redacted]" in "".join(told)
        told += [await said(daemon, f"{words} --json") for words in ("status", "story blab", "events", "status blab")]
        assert "verysecret" not in "".join(told)
        assert b"verysecret" not in b"".join(file.read_bytes() for file in daemon.state_dir.glob("hotseat.db*"))


async def test_a_wrong_ready_path_is_named(tmp_path: Path) -> None:
    async with house(tmp_path, fake("a", ready={"path": "/nope"}, start_timeout="2s"), SEAT) as daemon:
        assert "/nope answers 404; `ready: {path: ...}` names another path" in await said(daemon, "wake a", code=1)
        assert "/nope answers 404" in (await failure_card(daemon, "a"))["why"]


def copy_start(of: Path, to: Path, size: int) -> None:
    with open(of, "rb") as source:
        to.write_bytes(source.read(size))


async def test_a_start_of_llamacpp_that_fails_has_a_card(tmp_path: Path) -> None:
    model = str(await asyncio.to_thread(demo_model_path))
    cut = tmp_path / "cut.gguf"
    await asyncio.to_thread(copy_start, Path(model), cut, 60 * MIB)
    limited = ["/bin/sh", "-c", "ulimit -v 400000; exec " + shlex.join([*xllamacpp_command(), "-m", model]) + ' --port "$0"', "${port}"]
    models: dict[str, Any] = {
        "fussy": {"engine": "llamacpp", "model": model, "args": ["-c", "512", "--no-such-flag"]},
        "cut": {"engine": "llamacpp", "model": str(cut)},
        "hungry": {"engine": "llamacpp", "model": model, "command": limited, "args": ["-c", "512"]},
    }
    async with house(tmp_path, models, {"cpu0": 2048 * MIB}) as daemon:
        for name in models:
            await said(daemon, f"wake {name} --no-wait")
        found = {name: await failure_card(daemon, name) for name in models}
        assert found["fussy"]["why"].startswith("unknown_flag: llama-server does not know the flag --no-such-flag")
        assert found["fussy"]["fix"] == "correct or remove --no-such-flag in `args`"
        assert found["fussy"]["log"].endswith("argument: --no-such-flag")
        assert found["cut"]["why"].startswith("model_unreadable: ")
        assert found["cut"]["fix"]
        assert found["hungry"]["why"].startswith("host_oom: it could not get")
        assert found["hungry"]["fix"]
        assert found["hungry"]["log"]


async def test_a_second_daemon_refuses(tmp_path: Path) -> None:
    """Over the same state it names the first one; over a state of its own it names the port, and starts nothing."""
    (tmp_path / "second").mkdir()
    async with house(tmp_path, fake("a"), SEAT) as daemon:
        assert daemon.process is not None
        text = await said(daemon, f"serve --config {daemon.config}", code=6)
        assert str(daemon.process.pid) in text
        second = RealDaemon(tmp_path / "second", fake("b", awake="always"), SEAT)
        second.settings["listen"] = daemon.url.removeprefix("http://")
        second.write_config()
        code, _, err = await second.cli("serve", "--config", str(second.config))
        assert (code, "cannot listen on" in err) == (1, True)
        assert second.processes() == []
        assert (await daemon.chat("a"))[0] == 200


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("modles: {}\n", ":1: unknown key 'modles'"),
        ("models: [\n", "never closed"),
    ],
)
async def test_a_bad_configuration_ends_with_78(tmp_path: Path, text: str, told: str) -> None:
    config = tmp_path / "hotseat.yaml"
    config.write_text(text)
    code, out, err = await RealDaemon(tmp_path, {}, {}).cli("serve", "--config", str(config))
    assert (code, out) == (78, "")
    assert str(config) in err
    assert told in err
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("listen", "told"),
    [
        ("0.0.0.0:0", "can be reached from other machines"),
        ("[::]:0", "can be reached from other machines"),
        ("127.0.0.1:http", "'http' is not a port"),
        ("127.0.0.1:99999", "'99999' is not a port"),
        (":0", "has no host"),
        ("127.0.0.1", "has no port"),
        ("", "has no port"),
    ],
)
async def test_a_listen_flag_is_held_to_the_rules_of_the_file(tmp_path: Path, listen: str, told: str) -> None:
    daemon = RealDaemon(tmp_path, {}, SEAT)
    daemon.write_config()
    code, out, err = await daemon.cli("serve", "--config", str(daemon.config), "--listen", "127.0.0.1:0", "--listen", listen)
    assert (code, out) == (2, "")
    assert err.startswith("hotseat: --listen: ")
    assert told in err
    assert "\n  fix: " in err
    assert not daemon.state_dir.exists()
