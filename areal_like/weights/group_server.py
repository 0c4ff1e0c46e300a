"""Where the members of groups meet: what they tell each other by, and who is still there.

One thread serves all connections. Libraries for collectives notice the death of a process late or never; the kernel
closes its connections at once.
"""

import contextlib
import json
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Any

from areal_like.weights.group_member import (
    HOST,
    MAX_LINE_BYTES,
    MEMBER,
    as_bytes,
    as_text,
    is_proof,
    json_line,
    make_proof,
    new_nonce,
)

MAX_UNPROVEN = 512
"""Connections that are held of those who have not proved who they are. Anybody on the machine can open some: the oldest
make room."""


MAX_GROUPS = 16
"""Of the newest; who comes late to one that was broken up is told why."""


class KeyValueStore:
    """What the members of one group have told. Values are bytes, as torch's stores have them."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._turn = threading.Lock()

    def set(self, key: str, value: bytes) -> None:
        with self._turn:
            self._values[key] = value

    def get(self, key: str) -> bytes | None:
        with self._turn:
            return self._values.get(key)

    def add(self, key: str, number: int) -> int:
        with self._turn:
            total = int(self._values.get(key, b"0")) + number
            self._values[key] = str(total).encode()
            return total

    def compare_set(self, key: str, expected: bytes, wanted: bytes) -> bytes:
        with self._turn:
            if self._values.get(key, b"") == expected:
                self._values[key] = wanted
            return self._values.get(key, b"")

    def answer(self, said: dict[str, Any]) -> Any:
        """A member's question; raises KeyError or ValueError for what is none."""
        key = str(said["key"])
        match said["do"]:
            case "set":
                return self.set(key, as_bytes(said["value"]))
            case "get":
                value = self.get(key)
                return None if value is None else as_text(value)
            case "add":
                return self.add(key, int(said["value"]))
            case "compare_set":
                return as_text(self.compare_set(key, as_bytes(said["expected"]), as_bytes(said["value"])))
        raise ValueError(said["do"])


class _Caller:
    """A connection: a stranger's, until `who` is known. `group` is what it wants to be in."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.unread = connection, b""
        self.title = self.nonce = self.own_nonce = self.who = ""

    @property
    def waits(self) -> bool:
        """For its group to be opened."""
        return bool(self.title) and not self.own_nonce


class GroupServer:
    """`on_gone(title, who)` is called for a member that went without a word."""

    def __init__(self, host: str, port: int, on_gone: Callable[[str, str], None]) -> None:
        self._on_gone = on_gone
        self._listening = socket.create_server((host, port), backlog=256)
        self.port: int = self._listening.getsockname()[1]
        self._groups: dict[str, tuple[str, KeyValueStore]] = {}
        self._callers: dict[socket.socket, _Caller] = {}
        self._wake, self._woken = socket.socketpair()
        self._ends = False
        threading.Thread(target=self._serve, name="weights: meeting", daemon=True).start()

    def open(self, title: str, secret: str) -> KeyValueStore:
        board = KeyValueStore()
        self._groups[title] = (secret, board)
        for old in list(self._groups)[:-MAX_GROUPS]:
            del self._groups[old]
        self._wake.send(b".")  # some may be waiting for it
        return board

    def close(self) -> None:
        self._ends = True
        self._wake.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector, self._listening, self._woken:
            for each in (self._listening, self._woken):
                selector.register(each, selectors.EVENT_READ)
            boards: dict[socket.socket, KeyValueStore] = {}
            while not self._ends:
                for key, _ in selector.select():
                    ready = key.fileobj
                    if ready is self._woken:
                        self._woken.recv(MAX_LINE_BYTES)
                        for caller in [caller for caller in self._callers.values() if caller.waits]:
                            self._greet(caller)
                    elif ready is self._listening:
                        self._come(selector)
                    elif isinstance(ready, socket.socket) and ready in self._callers:
                        caller = self._callers[ready]
                        if not self._hear(caller, boards):
                            self._forget(selector, caller, boards)
            for caller in self._callers.values():
                caller.connection.close()

    def _come(self, selector: selectors.BaseSelector) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError:
            return  # it has gone again
        strangers = [caller for caller in self._callers.values() if not caller.who]
        if len(strangers) >= MAX_UNPROVEN:
            self._forget(selector, strangers[0], {})
        connection.setblocking(False)
        self._callers[connection] = _Caller(connection)
        selector.register(connection, selectors.EVENT_READ)

    def _forget(
        self, selector: selectors.BaseSelector, caller: _Caller, boards: dict[socket.socket, KeyValueStore]
    ) -> None:
        del self._callers[caller.connection]
        boards.pop(caller.connection, None)
        selector.unregister(caller.connection)
        caller.connection.close()

    def _hear(self, caller: _Caller, boards: dict[socket.socket, KeyValueStore]) -> bool:
        """Whether there may be more to hear."""
        try:
            heard = caller.connection.recv(MAX_LINE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            heard = b""
        *lines, caller.unread = (caller.unread + heard).split(b"\n")
        for each in lines:
            try:
                goes_on = self._answer(caller, json.loads(each), boards)
            except (ValueError, KeyError, TypeError, RecursionError):
                goes_on = False  # whoever speaks so is no member
            if not goes_on:
                return False
        if not heard and caller.who:
            self._on_gone(caller.title, caller.who)
        return bool(heard) and len(caller.unread) <= MAX_LINE_BYTES

    def _answer(self, caller: _Caller, said: dict[str, Any], boards: dict[socket.socket, KeyValueStore]) -> bool:
        if caller.who:
            if said["do"] == "leave":
                return False
            return self._say(caller, {"is": boards[caller.connection].answer(said)})
        if not caller.title:
            caller.title, caller.nonce = str(said["title"]), str(said["nonce"])
            return self._greet(caller)
        if caller.waits or caller.title not in self._groups:
            return False
        (secret, board), who = self._groups[caller.title], str(said["who"])
        if not is_proof(said["proof"], secret, MEMBER, caller.nonce, caller.own_nonce, who):
            return False
        caller.who, boards[caller.connection] = who, board
        return self._say(caller, {"is": None})

    def _greet(self, caller: _Caller) -> bool:
        """Nothing yet where the group is not open: servers may come before the trainer does."""
        if caller.title not in self._groups:
            return True
        secret, _ = self._groups[caller.title]
        caller.own_nonce = new_nonce()
        return self._say(
            caller, {"nonce": caller.own_nonce, "proof": make_proof(secret, HOST, caller.nonce, caller.own_nonce)}
        )

    def _say(self, caller: _Caller, said: dict[str, Any]) -> bool:
        """One that does not read what it asked for is not answered any more."""
        with contextlib.suppress(OSError):
            caller.connection.sendall(json_line(said))
            return True
        return False
