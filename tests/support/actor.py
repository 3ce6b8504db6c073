"""A program that behaves like engines do, good and bad, under the eyes of ``tests.support.hub.Hub``.

``python -I -S actor.py HUB_PORT VERB [ARGUMENT] ...`` does what the verbs say in order; ``serve`` reports to the hub
and then obeys its lines (the same verbs). It ends when the hub closes the connection, so that no test leaves one behind.
"""

import ctypes
import os
import signal
import socket
import sys
import threading
from typing import Any

_kept: list[Any] = []  # memory and sockets that live as long as the process
_hub: list[socket.socket] = []


def _connect(hub_port: int, name: str) -> Any:
    while _hub:
        _hub.pop().close()  # the one of the parent, whose end the hub should see
    connection = socket.create_connection(("127.0.0.1", hub_port))
    _hub.append(connection)
    connection.sendall(f"{name} {os.getpid()}\n".encode())
    return connection.makefile("rw", encoding="utf-8", newline="\n")


def serve(hub_port: int, name: str) -> None:
    """Report, then do what the hub says, answering each line with "ok" and what the verb found."""
    stream = _connect(hub_port, name)
    for line in stream:
        answer = act(hub_port, line.split())
        stream.write(f"ok {answer}\n")
        stream.flush()
    os._exit(0)


def erase_env() -> None:
    """Zero the environment block, as programs do that set their process title."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    ctypes.memset(start, 0, end - start)


def fork(hub_port: int, name: str, *, sessions: int) -> None:
    """A child that serves under ``name``; with sessions = 1 a daemon that forked twice into a session of its own."""
    if os.fork():
        return
    if sessions:
        os.setsid()
        if os.fork():
            os._exit(0)
    serve(hub_port, name)


def hop() -> None:
    """Replace this process by a child, again and again: no single look finds it where it was."""
    for _ in range(20_000):  # not for ever, should a test fail to end it
        if os.fork():
            os._exit(0)


def wait_for_main_thread() -> None:
    """Return when the kernel shows the main thread as ended."""
    while True:
        with open("/proc/self/stat", "rb") as file:
            if file.read().rpartition(b")")[2].split()[0] == b"Z":
                return
        os.sched_yield()


def count_signals() -> int:
    """How many signals SIGRTMIN wait for this process."""
    count = 0
    while signal.sigtimedwait({signal.SIGRTMIN}, 0):
        count += 1
    return count


def listen(address: str, port: str) -> int:
    """Listen; returns the port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.socket(family)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind((address, int(port)))
    server.listen()
    _kept.append(server)
    return int(server.getsockname()[1])


def touch(mib: str) -> None:
    """Hold so much memory, really."""
    _kept.append(bytearray(b"\1") * (int(mib) << 20))


def act(hub_port: int, words: list[str]) -> Any:
    """Do one sentence of verbs; returns what the last one found."""
    found: Any = ""
    verbs = iter(words)
    for verb in verbs:
        match verb:
            case "serve":
                serve(hub_port, next(verbs))
            case "serve-in-thread":
                threading.Thread(target=serve, args=(hub_port, next(verbs))).start()
                ctypes.CDLL(None).pthread_exit(None)  # the main thread leaves, the process goes on
            case "join-main":
                wait_for_main_thread()
            case "queue-signals":
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
            case "signals":
                found = count_signals()
            case "ignore-term":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            case "erase-env":
                erase_env()
            case "fork":
                fork(hub_port, next(verbs), sessions=0)
            case "daemonise":
                fork(hub_port, next(verbs), sessions=1)
                os.wait()
            case "new-group":
                os.setpgid(0, 0)
            case "hop":
                hop()
            case "listen":
                found = listen(next(verbs), next(verbs))
            case "touch":
                touch(next(verbs))
            case "free":
                _kept.clear()
            case "exit":
                os._exit(int(next(verbs)))
            case "print":
                print(next(verbs), flush=True)
            case _:
                raise SystemExit(f"unknown verb {verb!r}")
    return found


if __name__ == "__main__":
    act(int(sys.argv[1]), sys.argv[2:])
