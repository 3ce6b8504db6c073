"""The environment of an engine: built, not inherited (interfaces.md section 1)."""

import os
from collections.abc import Mapping
from pathlib import Path

from scheduler.domain.model import ModelSpec
from scheduler.domain.placeholders import expand

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def build_environment(state_dir: Path, spec: ModelSpec, added: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """PATH, LANG, HOME, then what the adapter adds, then the model's own ``env`` (env files are merged into it); never HOTSEAT_*.

    ``values`` stand behind the placeholders in ``env``. Raises Invalid (``unknown_placeholder``) when one names a variable that
    the daemon does not have any more.
    """
    base = {
        "PATH": os.environ.get("PATH", _DEFAULT_PATH),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "HOME": str(state_dir / "home"),
    }
    own = {name: expand(text, values, os.environ) for name, text in spec.env}
    merged = {**base, **added, **own}
    return {k: v for k, v in merged.items() if not k.startswith("HOTSEAT_")}
