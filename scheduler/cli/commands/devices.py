"""`hotseat devices`, `hotseat devices show ID`."""

import argparse

from scheduler.cli.answers import DEVICE, STATUS
from scheduler.cli.client import device_path
from scheduler.cli.context import Context
from scheduler.cli.failure import OK
from scheduler.cli.render.devices import render_device, render_devices


def arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Options of `devices ls` and `devices show`."""
    if command == "devices show":
        parser.add_argument("device", metavar="ID", help="id of the device, for example gpu0")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(context: Context) -> int:
    """List them, or show one."""
    args = context.args
    if args.command == "devices show":
        device = context.daemon.get(device_path(args.device), DEVICE)
        if args.json:
            context.say_json(device)
        else:
            context.say(render_device(device, context.view()))
    elif args.json:
        context.say_json({"items": context.daemon.pages("/devices")})
    else:  # the status: it knows the phases of those who sit there
        context.say(render_devices(context.daemon.get("/status", STATUS), context.view()))
    return OK
