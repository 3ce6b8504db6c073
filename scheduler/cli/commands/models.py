"""`hotseat models ls`, `hotseat models show MODEL`."""

import argparse

from scheduler.cli.answers import MODEL
from scheduler.cli.client import model_path
from scheduler.cli.context import Context
from scheduler.cli.failure import OK
from scheduler.cli.render.card import render_model
from scheduler.cli.render.lists import render_models


def arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Options of `models ls` and `models show`."""
    if command == "models show":
        parser.add_argument("model", metavar="MODEL", help="name or alias")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(context: Context) -> int:
    """List them, or show one."""
    args = context.args
    if args.command == "models show":
        model = context.daemon.get(model_path(args.model), MODEL)
        if args.json:
            context.say_json(model)
        else:
            context.say(render_model(model, context.view()))
        return OK
    models = context.daemon.pages("/models")
    if args.json:
        context.say_json({"items": models})
    else:
        context.say(render_models(models, context.view()))
    return OK
