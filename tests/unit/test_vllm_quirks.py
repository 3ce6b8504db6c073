"""Versions of vLLM: what each one does was read in the sources of the releases named here."""

import pytest

from adapters.engines.vllm_quirks import TABLE, Quirks, quirks_of, release_of


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.32.0", (0, 32, 0)),
        ("0.32.0+cpu", (0, 32, 0)),
        ("0.22.1.dev2+g175a57ed9", (0, 22, 1)),
        ("0.17.0rc1", (0, 17, 0)),
        ("v0.9.2", (0, 9, 2)),
        ("0.9", (0, 9, 0)),
        ("1.0.0", (1, 0, 0)),
        ("", None),
        ("dev", None),
        ("0.1.dev1+gabcdef", None),  # a checkout without tags: as new as can be, not as old
        ("0.0.0", None),
    ],
)
def test_releases(version: str, release: tuple[int, int, int] | None) -> None:
    assert release_of(version) == release


def test_an_unknown_version_is_the_newest() -> None:
    assert quirks_of("") == quirks_of("dev") == quirks_of("9.9.9") == Quirks()


@pytest.mark.parametrize(
    ("quirk", "without", "with_it"),
    [
        ("can_reload", "0.10.1", "0.10.2"),
        ("has_modes", "0.16.0", "0.17.0"),
        ("sleep_pauses", "0.16.0", "0.17.0"),
        ("partial_wake", "0.23.0", "0.24.0"),
        ("says_reset", "0.25.1", "0.26.0"),
        ("says_level", "0.31.0", "0.32.0"),
    ],
)
def test_each_quirk_begins_with_one_release(quirk: str, without: str, with_it: str) -> None:
    assert getattr(quirks_of(without), quirk) is False
    assert getattr(quirks_of(with_it), quirk) is True


def test_each_row_names_its_source() -> None:
    assert all(row.source for row in TABLE)
    assert len({row.quirk for row in TABLE}) == len(TABLE)
