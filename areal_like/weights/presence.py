"""Who is still there: each member of a group holds a connection open, which its process cannot outlive.

Libraries for collectives notice the death of a process late or never. The kernel closes its connections at once.
"""

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable

LEFT = b"left\n"
LONGEST_WORD = 4096
MOST_MEMBERS = 512
"""Connections that are held. Anybody on the machine can open some: the oldest make room, and are not heard any more."""


class Presence:
    """Where members tell of themselves. `on_gone` is called with the words of one that went without a word."""

    def __init__(self, host: str, on_gone: Callable[[str], None]) -> None:
        self._on_gone = on_gone
        self._listening = socket.create_server((host, 0), backlog=256)
        self.port: int = self._listening.getsockname()[1]
        self._told: dict[socket.socket, bytes] = {}
        self._ends, self._end = socket.socketpair()
        threading.Thread(target=self._watch, name="weights: presence", daemon=True).start()

    def close(self) -> None:
        self._end.close()

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector, self._listening, self._ends:
            for each in (self._listening, self._ends):
                selector.register(each, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    found = key.fileobj
                    if found is self._ends:
                        for member in self._told:
                            member.close()
                        return
                    if found is self._listening:
                        self._come(selector)
                    elif isinstance(found, socket.socket) and found in self._told and not self._hear(found):
                        self._forget(selector, found)

    def _come(self, selector: selectors.BaseSelector) -> None:
        with contextlib.suppress(OSError):  # it has gone again
            member, _ = self._listening.accept()
            if len(self._told) >= MOST_MEMBERS:
                self._forget(selector, next(iter(self._told)))
            self._told[member] = b""
            selector.register(member, selectors.EVENT_READ)

    def _forget(self, selector: selectors.BaseSelector, member: socket.socket) -> None:
        del self._told[member]
        selector.unregister(member)
        member.close()

    def _hear(self, member: socket.socket) -> bool:
        """Whether there may be more to hear."""
        try:
            said = member.recv(LONGEST_WORD)
        except OSError:
            said = b""
        told = self._told[member]
        if said:
            self._told[member] = told + said
            return len(self._told[member]) <= LONGEST_WORD
        if told and not told.endswith(LEFT):
            self._on_gone(told.decode(errors="replace").strip())
        return False


class Member:
    """The other end. `name` is what is said of it when it goes without a word."""

    def __init__(self, host: str, port: int, name: str, timeout_s: float) -> None:
        self._connection = socket.create_connection((host, port), timeout=timeout_s)
        self._connection.sendall(f"{name}\n".encode())

    def leave(self) -> None:
        with contextlib.suppress(OSError), self._connection:
            self._connection.sendall(LEFT)
