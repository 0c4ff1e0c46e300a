"""Numbers of ports for processes that cannot take a free one by themselves."""

import os
import socket

TRIES = 50


class PortLease:
    """A port that no other run of this user's machine is given as long as this is held.

    The lock is a name in the kernel's own namespace of sockets and not a file: it goes with its process, however that
    ends, and reaches exactly as far as port numbers do.
    """

    def __init__(self, port: int, lock: socket.socket) -> None:
        self.port = port
        self._lock = lock

    def close(self) -> None:
        self._lock.close()


def lease_port(host: str = "127.0.0.1") -> PortLease:
    """A port that is free now. Somebody else may still take it before the process does; then another is leased."""
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
