"""Log files of engines: bounded in size, number and sum; dropped first when the disk is nearly full."""

import os
import threading
from pathlib import Path

import pytest

from scheduler.api.service import LogQuery
from scheduler.api.tail import MAX_BYTES
from scheduler.config.settings import LogSettings, Share
from scheduler.daemon import logfiles
from scheduler.daemon.logfiles import LogKeeper, read_lines, read_piece, trim

NOTHING = Share(size_bytes=0)
EVERYTHING = Share(ratio=1.0)  # no disk is ever as free as that


def logs(folder: Path, *sizes: int, model: str = "m") -> list[Path]:
    """Log files of one model, oldest first."""
    files = []
    for launch, size in enumerate(sizes, 1):
        file = folder / f"{model}-{launch}.log"
        file.write_bytes(b"".join(b"%015d\n" % n for n in range(size // 16)))
        os.utime(file, (launch, launch))
        files.append(file)
    return files


def names(folder: Path) -> list[str]:
    return sorted(f.name for f in folder.iterdir())


def test_old_files_go_by_number_and_by_sum_but_never_the_newest(tmp_path: Path) -> None:
    logs(tmp_path, 160, 160, 160, 160)
    logs(tmp_path, 160, model="other")
    trim(tmp_path, LogSettings(size_bytes=1000, keep=3))
    assert names(tmp_path) == ["m-2.log", "m-3.log", "m-4.log", "other-1.log"]
    trim(tmp_path, LogSettings(size_bytes=1000, keep=3, total_bytes=1))
    assert names(tmp_path) == ["m-4.log", "other-1.log"]


def test_a_large_file_is_cut_in_place_and_its_end_is_kept(tmp_path: Path) -> None:
    (file,) = logs(tmp_path, 1600)
    with file.open("ab") as writer:  # the engine
        trim(tmp_path, LogSettings(size_bytes=1000))
        writer.write(b"goes on\n")
    assert file.read_bytes() == b"goes on\n"
    tail = tmp_path / "m-1.log.1"
    assert tail.read_bytes().endswith(b"%015d\n" % 99)
    assert (tail.stat().st_size, tail.stat().st_mode & 0o777) == (500, 0o600)


def test_what_was_cut_off_counts_and_goes_with_its_file(tmp_path: Path) -> None:
    old, new = logs(tmp_path, 160, 160)
    (tmp_path / f"{old.name}.1").write_bytes(b"x" * 5000)
    (tmp_path / f"{new.name}.1").write_bytes(b"x" * 50)
    trim(tmp_path, LogSettings(total_bytes=4000))
    assert names(tmp_path) == ["m-2.log", "m-2.log.1"]


def test_a_disk_without_room_for_the_end_still_gets_its_space_back(tmp_path: Path) -> None:
    (file,) = logs(tmp_path, 1600)
    (tmp_path / "m-1.log.1").mkdir()  # cannot be written, as on a full disk
    trim(tmp_path, LogSettings(size_bytes=1000))
    assert file.stat().st_size == 0


async def test_a_nearly_full_disk_costs_the_old_logs_and_is_told_once(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    folder = tmp_path / "logs"
    folder.mkdir()
    logs(folder, 160, 160, 160)
    (folder / "m-3.log.1").write_bytes(b"x")
    easy = LogKeeper(folder, LogSettings(), NOTHING, lambda *said: told.append(said))
    await easy.once()
    assert (len(names(folder)), told) == (4, [])
    hard = LogKeeper(folder, LogSettings(), EVERYTHING, lambda *said: told.append(said))
    await hard.once()
    await hard.once()
    assert names(folder) == ["m-3.log"]
    ((message, fix),) = told
    assert f"free on the disk of {tmp_path}, less than disk.min_free" in message
    assert "disk.min_free" in fix


async def test_the_end_of_the_shortage_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    keeper = LogKeeper(tmp_path, LogSettings(), EVERYTHING, lambda message, _fix: told.append(message))
    await keeper.once()
    monkeypatch.setattr(keeper, "_min_free", NOTHING)
    await keeper.once()
    await keeper.once()
    assert [bool(message) for message in told] == [True, False]


async def test_a_folder_that_is_gone_is_no_end_of_the_keeper(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await LogKeeper(tmp_path / "gone", LogSettings(), EVERYTHING, lambda _message, _fix: None).once()
    assert "could not be trimmed" in caplog.text


LINE = "INFO 11-30 14:03:12 [loggers.py:116] Engine 000: Avg prompt throughput: 12.3 tokens/s, HF_TOKEN=hf_abcdefghij\n"


@pytest.mark.parametrize("query", [LogQuery(offset=0), LogQuery(lines=10_000)])
async def test_the_largest_piece_of_a_log_does_not_keep_the_loop(tmp_path: Path, query: LogQuery) -> None:
    log = tmp_path / "m-1.log"
    log.write_text(LINE * 10_000 + "x" * MAX_BYTES)
    piece = await read_piece(log, query)  # the guard of every test fails one in which the loop stands still
    assert len(piece.lines) <= 10_000
    assert "hf_abc" not in "".join(piece.lines)


async def test_redaction_is_no_work_of_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers: set[int] = set()

    def noted(text: str) -> str:
        workers.add(threading.get_ident())
        return text

    monkeypatch.setattr(logfiles, "redact_text", noted)
    (tmp_path / "m-1.log").write_text(LINE)
    await read_piece(tmp_path / "m-1.log", LogQuery())
    await read_lines(str(tmp_path / "m-1.log"))
    assert workers
    assert threading.get_ident() not in workers
