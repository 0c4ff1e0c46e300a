"""Listening sockets of processes, from the kernel's tables."""

import ipaddress
import os
from collections.abc import Iterable
from pathlib import Path

Address = tuple[str, int]


def listening(pids: Iterable[int]) -> dict[int, set[Address]]:
    """Process -> the addresses and ports on which it listens."""
    sockets = listening_sockets()
    results: dict[int, set[Address]] = {}
    for pid in pids:
        try:
            targets = [_target(handle) for handle in Path(f"/proc/{pid}/fd").iterdir()]
        except FileNotFoundError:
            continue  # it has ended meanwhile
        results[pid] = {sockets[name] for name in targets if name in sockets}
    return results


def open_to_others(results: dict[int, set[Address]]) -> list[Address]:
    """The sockets that other machines can reach."""
    addresses = set().union(*results.values())
    return sorted(each for each in addresses if not ipaddress.ip_address(each[0]).is_loopback)


def listening_sockets() -> dict[str, Address]:
    """socket -> address"""
    results = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A":
                address, _, port = local.partition(":")
                words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
                host = ipaddress.ip_address(b"".join(words))
                mapped = getattr(host, "ipv4_mapped", None)
                results[f"socket:[{rest[5]}]"] = (str(mapped or host), int(port, 16))
    return results


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""  # closed meanwhile
