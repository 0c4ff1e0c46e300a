"""Where trainer ranks meet, and which of the machine's addresses they listen on: no more than they need."""

import ipaddress
import os
import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist

AGENT = "TORCHELASTIC_USE_AGENT_STORE"
"""Set by torchrun, whose agent has a store of its own for the ranks."""
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
LOOPBACK = "lo"

c10d: Any = dist
"""Whose annotations leave out what is used here."""


def rendezvous_store(rank: int, size: int, timeout_s: float) -> Any:
    """The store by which the ranks find each other; None where torch finds the right one by itself. Left to itself
    torch lets a store listen on every address of the machine, and gloo on that of its host name."""
    if size == 1:  # a rank by itself needs no port to meet on
        return c10d.HashStore()
    if os.environ.get(AGENT) == "True":
        return None
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    is_loopback = ipaddress.ip_address(place[0]).is_loopback
    on_one_node = int(os.environ.get("LOCAL_WORLD_SIZE", size)) == size
    if is_loopback and on_one_node:
        for name in INTERFACES:
            os.environ.setdefault(name, LOOPBACK)
    handle = None
    if rank == 0:
        # On several nodes a name of this one may lead to loopback here and to another address elsewhere.
        bound = place if on_one_node or not is_loopback else ("", port)
        handle = socket.create_server((bound[0], bound[1]), family=family, backlog=max(128, 2 * size)).detach()
    return c10d.TCPStore(
        host,
        port,
        size,
        is_master=rank == 0,
        timeout=timedelta(seconds=timeout_s),
        master_listen_fd=handle,
    )
