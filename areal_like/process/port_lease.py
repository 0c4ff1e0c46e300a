"""Reserves ports for processes that cannot listen on port 0."""

import os
import socket

TRIES = 50


class PortLease:
    """A port that no other run of this user gets while this is held.

    The lock is an abstract socket name, not a file: the kernel releases it with the process, and its scope is the
    network namespace, as that of ports.
    """

    def __init__(self, port: int, *held: socket.socket) -> None:
        self.port = port
        self._held = held

    def close(self) -> None:
        for each in self._held:
            each.close()


def lease_port(host: str = "127.0.0.1", keeps_bound: bool = False) -> PortLease:
    """A port that is free now. Another program may still take it before the process listens; then lease another.
    `keeps_bound`: the kernel gives it to no other program; a process that listens must set SO_REUSEADDR."""
    for _ in range(TRIES):
        probe, lock = socket.socket(), socket.socket(socket.AF_UNIX)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(keeps_bound))
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        try:
            lock.bind(f"\0areal-like.{os.getuid()}.port.{port}")
        except OSError:
            probe.close()
            lock.close()
            continue
        if keeps_bound:
            return PortLease(port, lock, probe)
        probe.close()
        return PortLease(port, lock)
    raise OSError(f"no free port was found on {host} in {TRIES} tries")
