"""The virtual loop: jumps, order, foreign work, deadlock."""

import asyncio
import socket
import threading
import time

import pytest

from scheduler.ports.clock import Clock
from scheduler.simulator.virtual_time import (
    EPOCH_S,
    Deadlock,
    ForeignWorkStalled,
    VirtualClock,
    VirtualLoop,
    elapse,
    run_virtual,
    settle,
)
from scheduler.telemetry.tasks import spawn


def test_a_week_passes_at_once() -> None:
    async def main() -> float:
        await asyncio.sleep(7 * 86_400)
        return asyncio.get_running_loop().time()

    started = time.monotonic()
    assert run_virtual(main()) == 7 * 86_400
    assert time.monotonic() - started < 5


def test_timers_fire_in_order_and_never_early() -> None:
    # Sums of 0.1 are not exact: a loop that jumps by a difference, or fires within its resolution, fails here.
    async def main() -> list[tuple[float, float]]:
        loop = asyncio.get_running_loop()
        seen: list[tuple[float, float]] = []
        due = [0.1 * n + 1e-10 * m for n in range(1, 40) for m in range(3)]

        def fire(when: float) -> None:
            seen.append((when, loop.time()))

        for when in reversed(due):
            loop.call_at(when, fire, when)
        await asyncio.sleep(10)
        return seen

    seen = run_virtual(main())
    assert [when for when, _ in seen] == sorted(when for when, _ in seen)
    assert len(seen) == 117
    assert all(when == fired for when, fired in seen)


def test_time_stands_still_while_something_is_ready() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        fired: list[float] = []
        loop.call_later(1, lambda: fired.append(loop.time()))
        for _ in range(1000):
            await asyncio.sleep(0)
        assert fired == []
        return loop.time()

    assert run_virtual(main(), start_s=50.0) == 50.0


def test_timeouts_are_virtual() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(900):
                await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 900


@pytest.mark.virtual_time
async def test_threads_stop_the_clock() -> None:
    gate = threading.Event()
    loop = asyncio.get_running_loop()
    order: list[str] = []
    loop.call_later(0.001, order.append, "timer")

    async def work() -> None:
        order.append(await asyncio.to_thread(lambda: "thread" if gate.wait(10) else "timed out"))

    task = spawn(work(), "work")
    loop.call_soon(gate.set)
    await task
    assert order == ["thread"]
    assert loop.time() == 0
    await elapse(1)
    assert order == ["thread", "timer"]


@pytest.mark.virtual_time
async def test_a_cancelled_thread_call_stops_the_clock_until_the_thread_ended() -> None:
    started, gate, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        gate.wait(10)
        ended.set()

    task = spawn(asyncio.to_thread(work), "work")
    await asyncio.to_thread(started.wait, 10)
    task.cancel()
    await asyncio.wait([task])
    assert not ended.is_set()
    asyncio.get_running_loop().call_soon(gate.set)
    await elapse(1)
    assert ended.is_set()


@pytest.mark.virtual_time
async def test_sockets_work_as_announced_foreign_work() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        sender = threading.Thread(target=lambda: theirs.sendall(b"hello"))
        with loop.foreign_work("an answer of the other end"):
            received = loop.sock_recv(ours, 100)
            sender.start()
            assert await received == b"hello"
        sender.join()
    assert loop.time() == 0


@pytest.mark.virtual_time
async def test_what_has_arrived_already_comes_before_a_jump() -> None:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"hello")
        read_at: list[float] = []

        def readable() -> None:
            read_at.append(loop.time())
            loop.remove_reader(ours)

        loop.add_reader(ours, readable)
        await elapse(10)
    assert read_at == [0]


@pytest.mark.virtual_time
async def test_foreign_work_may_end_more_than_once_and_from_a_thread() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    first, second = loop.begin_foreign("first"), loop.begin_foreign("second")
    first()
    first()
    helper = threading.Thread(target=second)
    helper.start()
    await elapse(5)
    helper.join()
    assert loop.time() == 5


def test_ending_foreign_work_after_the_loop_was_closed_is_harmless() -> None:
    loop = VirtualLoop()
    end = loop.begin_foreign("late")
    loop.close()
    end()


def test_a_deadlock_names_the_task_and_the_line() -> None:
    async def stuck_for_ever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await spawn(stuck_for_ever(), "the-stuck-one")

    with pytest.raises(Deadlock, match=r"(?s)stands at 0 s.*the-stuck-one at locks\.py:\d+ in wait"):
        run_virtual(main())


def test_foreign_work_that_never_ends_is_named() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.begin_foreign("an answer that never comes")
        await asyncio.sleep(1)

    with (
        pytest.raises(ForeignWorkStalled, match=r"within 0\.05 s of real time: an answer that never comes"),
        asyncio.Runner(loop_factory=lambda: VirtualLoop(foreign_limit_s=0.05)) as runner,
    ):
        runner.run(main())


@pytest.mark.virtual_time
async def test_settle_runs_what_is_ready_and_leaves_timers_alone(virtual_clock: VirtualClock) -> None:
    steps: list[int] = []

    async def worker() -> None:
        for n in range(50):
            await asyncio.sleep(0)
            steps.append(n)
        await asyncio.to_thread(steps.append, 50)
        await asyncio.sleep(1)
        steps.append(51)

    task = spawn(worker(), "worker")
    await settle()
    assert steps == list(range(51))
    assert virtual_clock.monotonic() == 0
    await task
    assert steps[-1] == 51


@pytest.mark.virtual_time
async def test_the_clock_follows_the_loop(virtual_clock: VirtualClock) -> None:
    clock: Clock = virtual_clock
    await elapse(90)
    assert (clock.monotonic(), clock.wall()) == (90, EPOCH_S + 90)


async def test_elapse_and_settle_refuse_a_real_loop() -> None:
    with pytest.raises(RuntimeError, match="needs a virtual loop"):
        await elapse(0.01)
    with pytest.raises(RuntimeError, match="needs a virtual loop"):
        await settle()


def test_two_runs_are_equal() -> None:
    async def main() -> list[str]:
        seen: list[str] = []

        async def ticker(name: str, period_s: float) -> None:
            for n in range(30):
                await asyncio.sleep(period_s)
                seen.append(f"{name}{n}@{asyncio.get_running_loop().time():.6f}")

        await asyncio.gather(*(ticker(name, 0.1 + 0.01 * i) for i, name in enumerate("abcdef")))
        return seen

    assert run_virtual(main()) == run_virtual(main())
