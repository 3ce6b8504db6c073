"""One thread that does work in order, and ends with its owner."""

import functools
import gc
import threading

import pytest

from adapters.procfs.threads import LoneThread


def test_work_is_done_in_order_in_one_thread() -> None:
    thread = LoneThread("lone")
    done: list[tuple[int, str]] = []

    def note(number: int) -> None:
        done.append((number, threading.current_thread().name))

    for future in [thread.submit(functools.partial(note, number)) for number in range(3)]:
        future.result()
    assert done == [(0, "lone"), (1, "lone"), (2, "lone")]


def test_exceptions_go_to_who_waits_and_the_next_work_is_done() -> None:
    thread = LoneThread("lone")
    failing = thread.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failing.result()
    assert thread.submit(lambda: 5).result() == 5


def test_work_that_is_cancelled_before_its_turn_is_not_done() -> None:
    thread, gate, done = LoneThread("lone"), threading.Event(), []
    thread.submit(gate.wait)
    waiting = thread.submit(lambda: done.append(1))
    assert waiting.cancel()
    gate.set()
    assert thread.submit(lambda: list(done)).result() == []


def test_thread_begins_with_the_first_work_and_ends_with_its_owner() -> None:
    before = set(threading.enumerate())
    thread = LoneThread("lone")
    assert set(threading.enumerate()) == before
    (served,) = thread.submit(lambda: set(threading.enumerate()) - before).result()
    assert served.daemon
    del thread
    gc.collect()
    served.join()
