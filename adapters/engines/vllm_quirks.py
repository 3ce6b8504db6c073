"""What versions of vLLM cannot do yet, as data: each row was read in the sources of the releases on both sides of it.

Only what the adapter acts upon is here. An unknown version counts as the newest: whoever builds vLLM from a checkout does
not run an old one, and procedures check what comes back.
"""

import re
from dataclasses import dataclass, fields

_RELEASE = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")
#: Builds without tags call themselves 0.0.0 or 0.1.dev1.
_OLDEST_REAL = (0, 6, 0)

Release = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """What one version does; True = as the newest."""

    says_level: bool = True  # /sleep and /wake_up answer with JSON; before, with nothing
    has_modes: bool = True  # /sleep takes mode=wait and mode=abort
    sleep_pauses: bool = True  # a sleeper's scheduler is paused: a request waits; before, it crashed the engine
    partial_wake: bool = True  # weights can be woken alone; before, that let requests run without a KV cache
    can_reload: bool = True  # POST /collective_rpc reload_weights
    says_reset: bool = True  # /reset_prefix_cache says whether it did it


@dataclass(frozen=True, slots=True)
class Row:
    """``quirk`` is true from ``since`` on."""

    quirk: str
    since: Release
    source: str


TABLE: tuple[Row, ...] = (
    Row(
        "can_reload",
        (0, 10, 2),
        "/collective_rpc came with 0.10.2, reload_weights with 0.10.0; before, level 2 had no way back",
    ),
    Row("has_modes", (0, 17, 0), "vllm#34528"),
    Row("sleep_pauses", (0, 17, 0), "vllm#34528, which closed vllm#15483: a request to a sleeper was an illegal memory access"),
    Row("partial_wake", (0, 24, 0), "vllm#44395, fixed by vllm#44483"),
    Row("says_reset", (0, 26, 0), "the reply {success} of /reset_prefix_cache; before, 200 without a body (vllm#12284)"),
    Row("says_level", (0, 32, 0), "the replies of /sleep and /wake_up; up to 0.31, 200 without a body"),
)

assert {row.quirk for row in TABLE} == {field.name for field in fields(Quirks)}


def release_of(version: str) -> Release | None:
    """``0.22.1.dev2+g175a57ed9`` is (0, 22, 1); None when nothing is known of it."""
    match = _RELEASE.match(version.strip())
    if match is None:
        return None
    release = (int(match[1]), int(match[2]), int(match[3] or 0))
    return release if release >= _OLDEST_REAL else None


def quirks_of(version: str) -> Quirks:
    """What ``version`` (as ``/version`` says it) does."""
    release = release_of(version)
    if release is None:
        return Quirks()
    return Quirks(**{row.quirk: release >= row.since for row in TABLE})
