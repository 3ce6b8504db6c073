"""`hotseat serve`: hands over to the daemon."""

import argparse
import importlib

from scheduler.cli.context import Context


def arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Options of `serve`; each stands above the same key of the configuration file."""
    config_help = "configuration file (else HOTSEAT_CONFIG, ~/.config/hotseat/hotseat.yaml, /etc/hotseat/hotseat.yaml)"
    parser.add_argument("--config", metavar="FILE", help=config_help)
    parser.add_argument("--state-dir", metavar="DIR", help="state directory (else HOTSEAT_STATE_DIR, the file, the default)")
    parser.add_argument("--listen", metavar="HOST:PORT", action="append", help="address to listen on; may be given more than once")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info", help="how much to log (default info)")
    parser.add_argument("--log-json", action="store_true", help="log JSON lines")


def run(context: Context) -> int:
    """Run the daemon in this process; its exit code is ours (78 = bad configuration)."""
    # By name: the daemon brings the whole scheduler with it, and only this command needs it.
    code: int = importlib.import_module("scheduler.daemon.main").serve(context.args)
    return code
