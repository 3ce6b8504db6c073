"""Parts of the control API without a socket: times and nulls, error mapping, reading logs."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.api.errors import problem_of, status_of
from scheduler.api.schemas import Degraded, ModelStatus, Status, rfc3339
from scheduler.api.tail import read_from, read_tail
from scheduler.cli.render.facts import parse_time
from scheduler.domain.errors import Conflict, HotseatError, Invalid, InvariantViolated, NotFound, Permanent, Temporary
from scheduler.domain.instance import Phase
from tests.support import worlds


def test_times_are_rfc_3339_in_utc_and_survive_the_way_there_and_back() -> None:
    assert rfc3339(1_796_000_000.25) == "2026-11-30T00:53:20.250Z"
    item = Degraded(code="x", subject="y", since=1_796_000_000.25, message="z")
    assert json.loads(item.model_dump_json())["since"] == "2026-11-30T00:53:20.250Z"
    assert Degraded.model_validate_json(item.model_dump_json()) == item
    assert Degraded(code="x", subject="y", message="z").model_dump()["since"] is None


@given(st.floats(0, 4e9))
def test_the_command_line_reads_the_times_that_the_api_writes(posix_s: float) -> None:
    read = parse_time(rfc3339(posix_s))
    assert read is not None
    assert abs(read - posix_s) <= 0.0011


def test_a_status_survives_the_way_there_and_back() -> None:
    for make in (worlds.healthy, worlds.starting, worlds.broken, worlds.crowd, worlds.strange):
        assert Status.model_validate_json(make().model_dump_json()) == make()


def test_class_is_a_key_on_the_wire_and_a_keyword_in_python() -> None:
    model = ModelStatus(name="a", engine="e", source="api", model_class="batch")
    assert json.loads(model.model_dump_json())["class"] == "batch"


def test_unknown_keys_are_mistakes() -> None:
    with pytest.raises(ValueError, match="Extra inputs"):
        Status.model_validate({"version": "1", "uptime_s": 1, "ready": True, "extra": 1})


def test_the_screens_know_every_phase() -> None:
    from scheduler.cli.render.facts import EMPTY, MOVING, TROUBLE

    assert {*EMPTY, *MOVING, *TROUBLE, "awake", "asleep"} == set(Phase)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotFound("x"), 404),
        (Conflict("x"), 409),
        (Invalid("x"), 400),
        (Temporary("x", retry_after_s=1), 503),
        (Permanent("x"), 422),
        (Permanent("x", code="does_not_fit"), 507),
        (Permanent("x", code="model_failed"), 503),
        (Conflict("x", code="model_disabled"), 409),
        (InvariantViolated("x"), 500),
        (HotseatError("x"), 500),
    ],
)
def test_status_of_errors(error: HotseatError, status: int) -> None:
    assert status_of(error) == status


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (0.2, "1"), (7.1, "8"), (1e9, "120")])
def test_retry_after_is_a_whole_number_of_seconds_up_to_120(seconds: float, header: str) -> None:
    assert problem_of(Temporary("x", retry_after_s=seconds), "/x").headers["Retry-After"] == header


# --- logs --------------------------------------------------------------------------------------------------------------


def test_tail_of_a_missing_or_empty_file_is_empty(tmp_path: Path) -> None:
    assert read_tail(tmp_path / "none", 10).lines == []
    assert read_from(tmp_path / "none", 99).offset == 0
    (tmp_path / "empty").touch()
    piece = read_tail(tmp_path / "empty", 10)
    assert (piece.lines, piece.offset, piece.truncated) == ([], 0, False)


def test_tail_shows_a_last_line_without_newline_because_a_crash_ends_like_that(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\r\ntwo\nSegmentation fau")
    piece = read_tail(path, 2)
    assert (piece.lines, piece.truncated, piece.offset) == (["two", "Segmentation fau"], True, len(b"one\r\ntwo\n"))


@given(
    st.lists(st.text(st.characters(exclude_characters="\n\r", codec="utf-8"), max_size=40), max_size=60),
    st.integers(0, 70),
    st.integers(1, 300),
)
def test_tail_agrees_with_reading_it_all(tmp_path_factory: pytest.TempPathFactory, lines: list[str], wanted: int, block: int) -> None:
    import scheduler.api.tail as tail

    path = tmp_path_factory.mktemp("log") / "log"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    before, tail._BLOCK = tail._BLOCK, block
    try:
        piece = read_tail(path, wanted)
    finally:
        tail._BLOCK = before
    assert piece.lines == (lines[-wanted:] if wanted else [])
    assert piece.offset == path.stat().st_size
    assert piece.truncated == (wanted < len(lines))


def test_tail_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 99 + b"\n" + (b"y" * 99 + b"\n") * 5000)
    piece = read_tail(path, 10_000, max_bytes=100_000)
    assert piece.truncated
    assert 99_000 <= sum(len(line) + 1 for line in piece.lines) <= 100_000
    assert set(piece.lines) == {"y" * 99}


@pytest.mark.parametrize("written", [b"", b"one\n", b"one\ntw"])
def test_who_follows_a_tail_gets_whole_lines(tmp_path: Path, written: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(written)
    tail = read_tail(path, 100)
    path.write_bytes(b"one\ntwo\nthree\n")
    rest = read_from(path, tail.offset)
    assert [*tail.lines[: written.count(b"\n")], *rest.lines] == ["one", "two", "three"]
    assert not rest.truncated


def test_the_tail_of_a_line_longer_than_an_answer_is_not_read_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"z" * 25)
    tail = read_tail(path, 5, max_bytes=10)
    assert (tail.lines, tail.offset, tail.truncated) == (["z" * 10], 25, True)
    with path.open("ab") as file:
        file.write(b"z\nend\n")
    assert read_from(path, tail.offset, max_bytes=10).lines == ["end"]


@pytest.mark.parametrize("offset", range(1, 14))
def test_an_offset_inside_a_line_shows_nothing_of_it(tmp_path: Path, offset: int) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"TOKEN=secret\nend\n")
    piece = read_from(path, offset)
    assert (piece.lines, piece.offset, piece.truncated) == (["end"], 17, offset < 13)


def test_following_picks_up_whole_lines_only_and_survives_truncation_in_place(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\ntw")
    first = read_from(path, 0)
    assert (first.lines, first.offset) == (["one"], 4)
    with path.open("a") as file:
        file.write("o\nthree\n")
    second = read_from(path, first.offset)
    assert second.lines == ["two", "three"]
    path.write_text("new\n")
    assert read_from(path, second.offset).lines == ["new"]


def test_following_shows_the_beginning_of_a_line_longer_than_a_piece_and_gets_past_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"z" * 25 + b"\nend\n")
    offset = 0
    pieces = []
    for _ in range(4):
        piece = read_from(path, offset, max_bytes=10)
        offset = piece.offset
        pieces.append((piece.lines, piece.truncated))
    assert pieces == [(["z" * 10], False), ([], True), (["end"], True), ([], False)]


def test_bytes_that_are_no_text_do_not_stop_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"ok\n\xff\xfe\x00\n")
    assert read_tail(path, 5).lines == ["ok", "\ufffd\ufffd\x00"]
