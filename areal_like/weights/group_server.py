"""Group server in the trainer's process: holds each group's key-value store, and notices members that are gone.

One thread serves all connections. Collective libraries notice the death of a process late or never; the kernel closes
its connections at once.
"""

import contextlib
import json
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Any

from areal_like.process.server_proof import new_nonce
from areal_like.weights.group_member import (
    HOST,
    MAX_LINE_BYTES,
    MEMBER,
    as_bytes,
    as_text,
    is_member_proof,
    json_line,
    make_member_proof,
)

MAX_UNPROVEN = 512
"""Maximum of unauthenticated connections, which any program on the machine can open: the oldest is closed for a new
one."""


MAX_GROUPS = 16
"""Number of groups that are kept, so that late members of an aborted group get the reason."""


class KeyValueStore:
    """Key-value store of one group. Values are bytes, as in torch's stores."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: bytes) -> None:
        with self._lock:
            self._values[key] = value

    def get(self, key: str) -> bytes | None:
        with self._lock:
            return self._values.get(key)

    def add(self, key: str, number: int) -> int:
        with self._lock:
            total = int(self._values.get(key, b"0")) + number
            self._values[key] = str(total).encode()
            return total

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        with self._lock:
            if self._values.get(key, b"") == expected:
                self._values[key] = desired
            return self._values.get(key, b"")

    def answer(self, request: dict[str, Any]) -> Any:
        """Answers a member's request; raises KeyError or ValueError if it is malformed."""
        key = str(request["key"])
        match request["do"]:
            case "set":
                return self.set(key, as_bytes(request["value"]))
            case "get":
                value = self.get(key)
                return None if value is None else as_text(value)
            case "add":
                return self.add(key, int(request["value"]))
            case "compare_set":
                return as_text(self.compare_set(key, as_bytes(request["expected"]), as_bytes(request["value"])))
        raise ValueError(request["do"])


class _Caller:
    """A connection; unauthenticated while `who` is empty."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.unread = connection, b""
        self.title = self.nonce = self.own_nonce = self.who = ""

    @property
    def waits(self) -> bool:
        """Whether it waits for its group to be opened."""
        return bool(self.title) and not self.own_nonce


class GroupServer:
    """`on_member_lost(title, who)` is called for a member that disconnects without leaving, `on_member_left` for one
    that leaves in order."""

    def __init__(
        self,
        host: str,
        port: int,
        on_member_lost: Callable[[str, str], None],
        on_member_left: Callable[[str, str], None],
    ) -> None:
        self._on_member_lost, self._on_member_left = on_member_lost, on_member_left
        self._listening = socket.create_server((host, port), backlog=256)
        self.port: int = self._listening.getsockname()[1]
        self._groups: dict[str, tuple[str, KeyValueStore]] = {}
        self._callers: dict[socket.socket, _Caller] = {}
        self._wake, self._wake_receiver = socket.socketpair()
        self._is_closed = False
        threading.Thread(target=self._serve, name="weights: group server", daemon=True).start()

    def open(self, title: str, secret: str) -> KeyValueStore:
        store = KeyValueStore()
        self._groups[title] = (secret, store)
        for old in list(self._groups)[:-MAX_GROUPS]:
            del self._groups[old]
        self._wake.send(b".")  # members may be waiting for it
        return store

    def close(self) -> None:
        self._is_closed = True
        self._wake.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector, self._listening, self._wake_receiver:
            for each in (self._listening, self._wake_receiver):
                selector.register(each, selectors.EVENT_READ)
            stores: dict[socket.socket, KeyValueStore] = {}
            while not self._is_closed:
                for key, _ in selector.select():
                    ready = key.fileobj
                    if ready is self._wake_receiver:
                        self._wake_receiver.recv(MAX_LINE_BYTES)
                        for caller in [caller for caller in self._callers.values() if caller.waits]:
                            self._send_proof(caller)
                    elif ready is self._listening:
                        self._accept(selector)
                    elif isinstance(ready, socket.socket) and ready in self._callers:
                        caller = self._callers[ready]
                        if not self._receive(caller, stores):
                            self._forget(selector, caller, stores)
            for caller in self._callers.values():
                caller.connection.close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError:
            return  # disconnected already
        unproven = [caller for caller in self._callers.values() if not caller.who]
        if len(unproven) >= MAX_UNPROVEN:
            self._forget(selector, unproven[0], {})
        connection.setblocking(False)
        self._callers[connection] = _Caller(connection)
        selector.register(connection, selectors.EVENT_READ)

    def _forget(
        self, selector: selectors.BaseSelector, caller: _Caller, stores: dict[socket.socket, KeyValueStore]
    ) -> None:
        del self._callers[caller.connection]
        stores.pop(caller.connection, None)
        selector.unregister(caller.connection)
        caller.connection.close()

    def _receive(self, caller: _Caller, stores: dict[socket.socket, KeyValueStore]) -> bool:
        """Handles received lines; False if the connection is to be closed."""
        try:
            received = caller.connection.recv(MAX_LINE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            received = b""
        *lines, caller.unread = (caller.unread + received).split(b"\n")
        for each in lines:
            try:
                keep_connection = self._answer(caller, json.loads(each), stores)
            except (ValueError, KeyError, TypeError, RecursionError):
                keep_connection = False  # a malformed line
            if not keep_connection:
                return False
        if not received and caller.who:
            self._on_member_lost(caller.title, caller.who)
        return bool(received) and len(caller.unread) <= MAX_LINE_BYTES

    def _answer(self, caller: _Caller, request: dict[str, Any], stores: dict[socket.socket, KeyValueStore]) -> bool:
        if caller.who:
            if request["do"] == "leave":
                self._on_member_left(caller.title, caller.who)
                return False
            return self._send(caller, {"is": stores[caller.connection].answer(request)})
        if not caller.title:
            caller.title, caller.nonce = str(request["title"]), str(request["nonce"])
            return self._send_proof(caller)
        if caller.waits or caller.title not in self._groups:
            return False
        (secret, store), who = self._groups[caller.title], str(request["who"])
        if not is_member_proof(request["proof"], secret, MEMBER, caller.nonce, caller.own_nonce, who):
            return False
        caller.who, stores[caller.connection] = who, store
        return self._send(caller, {"is": None})

    def _send_proof(self, caller: _Caller) -> bool:
        """Sends the server's proof; nothing while the group is not open: servers may connect before the trainer opens
        it."""
        if caller.title not in self._groups:
            return True
        secret, _ = self._groups[caller.title]
        caller.own_nonce = new_nonce()
        return self._send(
            caller,
            {"nonce": caller.own_nonce, "proof": make_member_proof(secret, HOST, caller.nonce, caller.own_nonce)},
        )

    def _send(self, caller: _Caller, request: dict[str, Any]) -> bool:
        """False if the member does not read its answers."""
        with contextlib.suppress(OSError):
            caller.connection.sendall(json_line(request))
            return True
        return False
