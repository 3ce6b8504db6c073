"""The daemon's own limits."""

import resource
from collections.abc import Iterator

import pytest

from scheduler.daemon.limits import MOST_OPEN_FILES, raise_open_files


@pytest.fixture
def low() -> Iterator[int]:
    """A soft limit below the hard one; gives the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_soft_limit_on_open_files_becomes_the_hard_one(low: int) -> None:
    raise_open_files()
    wanted = MOST_OPEN_FILES if low == resource.RLIM_INFINITY else min(low, MOST_OPEN_FILES)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (wanted, low)


def test_a_limit_that_cannot_be_raised_is_no_reason_not_to_run(
    low: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(kind: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    with monkeypatch.context() as patched:
        patched.setattr(resource, "setrlimit", refuse)
        raise_open_files()
    assert "cannot be raised" in caplog.text
