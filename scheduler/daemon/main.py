"""`hotseat serve`: read the configuration, take the state directory, recover, serve, and stop in order."""

import argparse
import asyncio
import dataclasses
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path

from scheduler.config.find import find_config
from scheduler.config.flags import listen_flags
from scheduler.config.load import load
from scheduler.config.problems import ConfigInvalid
from scheduler.config.settings import Loaded
from scheduler.daemon.clock import SystemClock
from scheduler.daemon.engine_facts import engine_facts, refused_variable
from scheduler.daemon.limits import raise_open_files
from scheduler.daemon.server import DRAIN_S, Server
from scheduler.domain.device import DeviceInfo
from scheduler.domain.errors import HotseatError, Invalid
from scheduler.domain.units import gib
from scheduler.store.lock import StateLock
from scheduler.telemetry.log import set_up
from scheduler.version import VERSION

log = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CONFLICT = 6
EXIT_CONFIG = 78


def serve(args: argparse.Namespace) -> int:
    """Run the daemon until it is told to stop; returns the exit code (78 = bad configuration, 2 = bad flag, 6 = already running)."""
    try:
        loaded = _configuration(args)
    except ConfigInvalid as error:
        sys.stderr.write(f"{error.report()}\nhotseat: nothing was started; mend the file, then see: hotseat config check {error.path}\n")
        return EXIT_CONFIG
    except Invalid as error:
        _explain(error)
        return EXIT_USAGE
    state_dir = loaded.settings.state_dir
    try:
        with StateLock(state_dir):
            set_up(as_json=args.log_json, level=args.log_level)
            logs = loaded.settings.logs
            log_file = RotatingFileHandler(state_dir / "daemon.log", maxBytes=logs.size_bytes, backupCount=logs.keep, encoding="utf-8")
            log_file.setFormatter(logging.getLogger().handlers[0].formatter)
            logging.getLogger().addHandler(log_file)
            raise_open_files()
            return asyncio.run(_run(loaded))
    except HotseatError as error:
        _explain(error)
        return EXIT_CONFLICT if error.code == "already_running" else EXIT_FAILED


def _explain(error: HotseatError) -> None:
    fix = f"\n  fix: {error.fix}" if error.fix else ""
    sys.stderr.write(f"hotseat: {error.message}{fix}\n")


def _configuration(args: argparse.Namespace) -> Loaded:
    names, flags = engine_facts()
    path = find_config(args.config, os.environ, os.geteuid(), Path.home())
    loaded = load(path, owned_flags=flags, known_engines=names, environ=os.environ, refused_variable=refused_variable)
    settings = loaded.settings
    state_dir = args.state_dir or os.environ.get("HOTSEAT_STATE_DIR")
    if state_dir:
        settings = dataclasses.replace(settings, state_dir=Path(state_dir).absolute())
    if args.listen:
        settings = dataclasses.replace(settings, listen=listen_flags(args.listen))
    return dataclasses.replace(loaded, settings=settings)


async def _run(loaded: Loaded) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup it is to be ignored
        loop.add_signal_handler(signal.SIGHUP, stop.set)  # a terminal that closes is no reason to die in disorder
    server = Server(loaded, SystemClock())
    try:
        await server.start()
        sys.stdout.write(hello(server.devices, list(loaded.models), server.addresses) + "\n")
        sys.stdout.flush()
        await stop.wait()
        keep = loaded.settings.gateway.on_exit == "keep"
        engines = "engines keep running and are adopted at the next start" if keep else "engines are stopped too (on_exit: stop)"
        log.info("stopping: answers under way have %.0f s to end; %s", DRAIN_S, engines)
    finally:
        await server.stop()
    return 0


def hello(devices: Sequence[DeviceInfo], models: Sequence[str], addresses: Sequence[str]) -> str:
    """The first line: seats and their memory, models, addresses; then what to do next."""
    seats = [device for device in devices if device.allocatable]
    cards = sum(device.kind == "nvidia" for device in seats)
    others = len(seats) - cards
    counts = [f"{cards} GPU{'' if cards == 1 else 's'}"] if cards else []
    counts += [f"{others} {'other ' if cards else ''}device{'' if others == 1 else 's'}"] if others or not cards else []
    total = sum(device.capacity_bytes for device in seats)
    many = f"{len(models)} model{'' if len(models) == 1 else 's'}"
    line = f"hotseat {VERSION}: {' and '.join(counts)}, {gib(total)} GiB, {many}, {', '.join(addresses)}"
    if not seats:
        line += ". No seats: hotseat doctor says what this machine has"
    if not models:
        return line + ". Next: describe a model in hotseat.yaml (see examples/hotseat.yaml) and start again"
    body = json.dumps({"model": models[0], "messages": [{"role": "user", "content": "hi"}]})
    return f"{line}\nTry: curl {addresses[0]}/v1/chat/completions -d '{body}'"
