"""Which configuration file counts. Imports nothing of the schema: every command may ask."""

import os
from collections.abc import Mapping
from pathlib import Path

SYSTEM_FILE = Path("/etc/hotseat/hotseat.yaml")
VARIABLE = "HOTSEAT_CONFIG"


def find_config(argument: str | Path | None, environ: Mapping[str, str], euid: int, home: Path, system: Path = SYSTEM_FILE) -> Path | None:
    """The first of: ``--config``, ``$HOTSEAT_CONFIG``, the user's file (not for root), the system's; None = none.

    A file that was asked for is returned even when it does not exist, so that loading it says so.
    """
    if argument is not None:
        return Path(argument)
    if environ.get(VARIABLE):
        return Path(environ[VARIABLE])
    candidates = [system] if euid == 0 else [home / ".config/hotseat/hotseat.yaml", system]
    # lexists: a dangling link is a mistake to report, not a reason to run with another file.
    return next((path for path in candidates if os.path.lexists(path)), None)
