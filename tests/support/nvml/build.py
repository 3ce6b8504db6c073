"""Builds the stand-in for libnvidia-ml.so.1, and lets the real ``pynvml`` find it."""

import atexit
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")
LIBRARY = "libnvidia-ml.so.1"


@functools.cache
def library() -> Path:
    """The built library, made once per test process. Skips the test where there is no gcc."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("the NVML stand-in needs gcc")
    folder = Path(tempfile.mkdtemp(prefix="hotseat-nvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    built = folder / LIBRARY
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"]
    words = [compiler, *flags, f"-Wl,-soname,{LIBRARY}", "-o", str(built), str(SOURCE), "-lpthread"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return built


@functools.cache
def preload() -> ctypes.CDLL:
    """Load it into this process: glibc answers pynvml's ``dlopen`` by its SONAME from then on. The world is read at every call."""
    return ctypes.CDLL(str(library()), ctypes.RTLD_GLOBAL)


def environment(world: str | os.PathLike[str]) -> dict[str, str]:
    """What another process needs in its environment (from its start) to see a world."""
    return {"LD_LIBRARY_PATH": str(library().parent), "FAKE_NVML_WORLD": os.fspath(world)}
