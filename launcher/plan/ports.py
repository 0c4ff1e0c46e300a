"""Ports of a run. Our servers bind port 0 and publish the result; other ports are leased under a lock."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import generates, starts_servers
from areal_like.config.experiment import GRPOConfig
from areal_like.config.problems import Problem
from areal_like.process.port_check import NO_ADDRESS, UNKNOWN_HOST
from areal_like.process.run import LOOPBACK
from areal_like.weights.transfer_path import COLLECTIVE_MODES
from launcher.checks.engines import is_external
from launcher.plan.host import HostInfo
from launcher.plan.plan import Port, Process

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

PUBLISHED = "binds a free port and publishes it under its name"
LEASED = "reserved under a lock before the start, replaced when it is in use"
HIGHEST_PORT = 65535
NODE_ADDRESS = "the node's address"
"""Known once the node is allocated."""


def plan_ports(
    config: "BaseExperimentConfig", processes: tuple[Process, ...], allocation: Allocation | None, spans_nodes: bool
) -> tuple[Port, ...]:
    """Ports in the order of the processes."""
    ports: list[Port] = []
    anywhere = NODE_ADDRESS if spans_nodes else "127.0.0.1"
    if generates(config):
        first, host = config.rollout.port, config.rollout.host or anywhere
        servers = [process for process in processes if process.role == "server"]
        for server in servers:
            starts = starts_servers(config) and allocation is not None and allocation.rollout is not None
            backend = allocation.server(server.index).backend if allocation is not None and starts else None
            ports += _server_ports(server, host, first, backend)
        ours = [process for process in processes if process.role in ("reward", "rollout")]
        ports += [Port(process.name, "http", anywhere, "bound", None, PUBLISHED) for process in ours]
    trainers = [process for process in processes if process.role == "trainer"]
    if trainers:
        ports.append(Port("trainer/0", "MASTER_PORT", anywhere, "leased", None, LEASED))
    if trainers and generates(config) and config.actor.weight_update_mode in COLLECTIVE_MODES:
        ports.append(_weights_port(config))
    return tuple(ports)


def _server_ports(process: Process, host: str, first: int, backend: str | None) -> Iterator[Port]:
    """The port of a server, and that of an external engine behind it."""
    if first:
        yield Port(process.name, "http", host, "fixed", first + process.index, "counts up from rollout.port")
    else:
        yield Port(process.name, "http", host, "bound", None, PUBLISHED)
    if backend is not None and is_external(backend):
        yield Port(process.name, backend, LOOPBACK, "leased", None, f"for its server alone; {LEASED}")


def _weights_port(config: GRPOConfig) -> Port:
    broadcast = config.weights.broadcast
    policy = ("fixed", broadcast.port, "weights.broadcast.port") if broadcast.port else ("bound", None, PUBLISHED)
    return Port("trainer/0", "weights", broadcast.host, *policy)


def taken_port_problems(ports: tuple[Port, ...], config: "BaseExperimentConfig", here: HostInfo) -> list[Problem]:
    """Fixed ports of this machine that are in use."""
    if config.cluster.type != "local":
        return []
    problems = []
    for port in ports:
        is_fixed = port.policy == "fixed" and port.host != NODE_ADDRESS and (port.port or 0) <= HIGHEST_PORT
        is_elsewhere = port.policy == "bound" and port.host not in (LOOPBACK, NODE_ADDRESS)
        if (is_fixed or is_elsewhere) and (why := here.why_no_port(port.host, port.port or 0)):
            section = "weights.broadcast" if port.purpose == "weights" else "rollout"
            reason = f"{port.process} cannot listen on {port.host}:{port.port or '*'}: {why}"
            is_host = why in (NO_ADDRESS, UNKNOWN_HOST)
            remedy = "name an address of this machine" if is_host else "choose another, or 0 for a free one"
            problems.append(Problem(f"{section}.{'host' if is_host else 'port'}", f"{reason}; {remedy}"))
            if is_host:
                break
    return problems


def port_number_problems(ports: tuple[Port, ...]) -> list[Problem]:
    """Fixed numbers that no machine can give."""
    too_high = [port for port in ports if port.port is not None and port.port > HIGHEST_PORT]
    if too_high:
        return [
            Problem("rollout.port", f"leaves no port for {too_high[0].process}: the highest port is {HIGHEST_PORT}")
        ]
    fixed = [port.port for port in ports if port.port is not None]
    twice = next((number for number in fixed if fixed.count(number) > 1), None)
    if twice is not None:
        return [Problem("weights.broadcast.port", f"{twice} is also the port of a server; choose another, or 0")]
    return []
