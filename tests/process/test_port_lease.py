"""A leased port is free and leased once."""

import socket

from areal_like.process.port_lease import lease_port


def test_a_leased_port_is_free_and_leased_once():
    leases = [lease_port() for _ in range(20)]
    assert len({one.port for one in leases}) == 20
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", leases[0].port))
    for one in leases:
        one.close()
