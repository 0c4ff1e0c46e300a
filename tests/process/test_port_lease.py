"""A leased port is free and leased once."""

import socket

import pytest

from areal_like.process.port_lease import lease_port


def test_a_leased_port_is_free_and_leased_once():
    leases = [lease_port() for _ in range(20)]
    assert len({one.port for one in leases}) == 20
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", leases[0].port))
    for one in leases:
        one.close()


def test_a_port_that_stays_bound_is_for_processes_that_listen_one_after_the_other():
    lease = lease_port(keeps_bound=True)
    place = ("127.0.0.1", lease.port)
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(place)
    for _ in range(2):  # a process, and the one that takes its place
        with socket.create_server(place) as server, socket.create_connection(place) as client:
            server.accept()[0].close()
            assert client.recv(1) == b""
    lease.close()
    with socket.socket() as next_one:
        next_one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        next_one.bind(place)
