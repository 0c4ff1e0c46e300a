"""Reserves ports for processes that cannot listen on port 0."""

import os
import socket

TRIES = 50


class PortLease:
    """A port that no other run of this user gets while this is held.

    The lock is an abstract socket name, not a file: the kernel releases it with the process, and its scope is the
    network namespace, as that of ports.
    """

    def __init__(self, port: int, lock: socket.socket) -> None:
        self.port = port
        self._lock = lock

    def close(self) -> None:
        self._lock.close()


def lease_port(host: str = "127.0.0.1") -> PortLease:
    """A port that is free now. Another program may still take it before the process listens; then lease another."""
    for _ in range(TRIES):
        with socket.socket() as probe:
            probe.bind((host, 0))
            port: int = probe.getsockname()[1]
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0areal-like.{os.getuid()}.port.{port}")
        except OSError:
            lock.close()
            continue
        return PortLease(port, lock)
    raise OSError(f"no free port was found on {host} in {TRIES} tries")
