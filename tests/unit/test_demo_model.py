"""The demo's model: whole or not there, made once, checked."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.engines import demo_model
from adapters.engines.demo_model import cache_dir, demo_model_path
from scheduler.domain.errors import Permanent

CONTENT = b"".join(bytes([n]) * 1_500_000 for n in range(4))

PACKAGE = """
from pathlib import Path
MODEL_NAME = "m.gguf"
EXPECTED_SHA256 = "{digest}"
def chunk_paths():
    return [Path(__file__).with_name(f"part{{n}}") for n in range(4)]
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package like the real one, of 6 MB."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "small_demo_model.py").write_text(PACKAGE.format(digest=hashlib.sha256(CONTENT).hexdigest()))
    for number in range(4):
        (folder / f"part{number}").write_bytes(CONTENT[number * 1_500_000 : (number + 1) * 1_500_000])
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(demo_model, "PACKAGE", "small_demo_model")
    yield folder
    sys.modules.pop("small_demo_model", None)


def test_made_once_with_progress(package: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = demo_model_path(tmp_path / "cache", lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    seen.clear()
    assert demo_model_path(tmp_path / "cache", lambda done, total: seen.append((done, total))) == path
    assert seen == []
    assert sorted(each.name for each in path.parent.iterdir()) == [".m.gguf.lock", "m.gguf"]


def test_what_a_killed_run_left_is_done_again(package: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "m.gguf").write_bytes(CONTENT[:1000])
    (folder / ".m.gguf.part").write_bytes(b"x" * 9_000_000)
    assert demo_model_path(folder).read_bytes() == CONTENT
    assert not (folder / ".m.gguf.part").exists()


def test_damaged_packages_leave_nothing(package: Path, tmp_path: Path) -> None:
    (package / "part2").write_bytes(b"z" * 1_500_000)
    with pytest.raises(Permanent, match="checksum") as caught:
        demo_model_path(tmp_path / "cache")
    assert caught.value.code == "model_unreadable"
    assert [each.name for each in (tmp_path / "cache").iterdir()] == [".m.gguf.lock"]


def test_two_processes_make_it_once(package: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:3]\n"
        "from adapters.engines import demo_model\n"
        "demo_model.PACKAGE = 'small_demo_model'\n"
        "from pathlib import Path; made = []\n"
        "demo_model.demo_model_path(Path(sys.argv[3]), lambda done, total: made.append(done))\n"
        "print(bool(made))"
    )
    root = str(Path(__file__).parents[2])
    argv = [sys.executable, "-c", code, str(package), root, str(tmp_path / "cache")]
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sorted(process.communicate(timeout=30)[0].strip() for process in both) == ["False", "True"]
    assert (tmp_path / "cache" / "m.gguf").read_bytes() == CONTENT


def test_a_full_disk_and_a_missing_package(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_model, "SPARE_BYTES", 1 << 60)
    with pytest.raises(Permanent, match="left") as caught:
        demo_model_path(tmp_path / "cache")
    assert caught.value.code == "disk_full"
    (tmp_path / "file").touch()
    with pytest.raises(Permanent) as caught:
        demo_model_path(tmp_path / "file")
    assert caught.value.code == "cache_unusable"
    monkeypatch.setattr(demo_model, "PACKAGE", "no_such_package_at_all")
    with pytest.raises(Permanent) as caught:
        demo_model_path(tmp_path / "cache")
    assert caught.value.code == "model_missing"
    assert "hotseat[llamacpp,demo]" in caught.value.fix


def test_where_the_cache_is(tmp_path: Path) -> None:
    assert cache_dir({"XDG_CACHE_HOME": "/var/cache"}) == Path("/var/cache/hotseat")
    assert cache_dir({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "hotseat"
    assert cache_dir({}) == Path.home() / ".cache" / "hotseat"
