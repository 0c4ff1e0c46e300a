"""Calls to an etcd cluster: one member after the other, with TLS, user and password, and faults in words."""

import logging
import os
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from areal_like.config.problems import ConfigError, Problem
from areal_like.config.sections.cluster import NameResolveConfig
from areal_like.process.errors import Failure
from areal_like.process.identity import ETCD_PASSWORD

PACKAGE, DISTRIBUTION = "pyetcd", "etcd-sdk-python"
PASSWORD = ETCD_PASSWORD
"""Variable with the password; every process of a run inherits it."""
SECTION = "cluster.name_resolve"
ADDRESS_KEY, USER_KEY = f"{SECTION}.etcd3_addr", f"{SECTION}.etcd3_user"
ROOT = "areal-like"
"""First part of every key."""
RETRY_S = 0.5
"""For so long after a call that no member answered, no further one is made."""

STREAMS = ("LeaseKeepAlive", "Watch")
NO_LEADER = ("no leader", "request timed out", "leader changed", "not capable")
LATE = ("context deadline exceeded", "context canceled")
TOO_LARGE = "larger than max"
OLD_TOKEN = ("invalid auth token", "revision of auth store is old")
UNKNOWN_USER = ("authentication failed", "user name is empty", "user name not found")

log = logging.getLogger(__name__)


class EtcdUnreachable(Failure):
    """No member answers, or the cluster has no leader."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{ADDRESS_KEY}: {why}")
        self.why = why


class LeaseLost(Exception):
    """etcd has no such lease (any more)."""


class EtcdClient:
    """Messages are those of etcd's own interface, in `rpc`."""

    def __init__(self, section: NameResolveConfig, cwd: Path) -> None:
        # gRPC's fork handlers would wait for its threads, and no process uses it on both sides of a fork. Its log goes
        # to stderr; faults are reported here.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        self._grpc: Any = import_module("grpc")
        self.rpc: Any = import_module(f"{PACKAGE}.etcdrpc")
        self._user, self._limit_s = section.etcd3_user, section.etcd3_timeout_s
        self._password = os.environ.get(PASSWORD) or section.etcd3_password or ""
        self._token = ""
        self._credentials = self._read_credentials(section, cwd)
        self._members = [address.strip() for address in section.etcd3_addr.split(",")]
        self._channels: dict[str, Any] = {}
        self._down = ""
        """Why no member answered the last call."""
        self._retry_at = 0.0
        self._has_answered = False

    def call(self, service: str, method: str, request: Any) -> Any:
        """Asks the members in turn, beginning with the one that answered last. Raises EtcdUnreachable, LeaseLost, or
        ConfigError where etcd refuses the user."""
        if self._down and time.monotonic() < self._retry_at:
            raise EtcdUnreachable(self._down)
        faults: dict[str, str] = {}
        ends = time.monotonic() + self._limit_s
        for place, member in enumerate(members := tuple(self._members)):
            limit_s = (ends - time.monotonic()) / (len(members) - place)
            try:
                answer = self._ask(member, service, method, request, limit_s)
            except self._grpc.RpcError as error:
                faults[member] = self._fault(member, error, limit_s)
                continue
            if self._members[0] != member:
                self._members = [member, *(other for other in self._members if other != member)]
            if self._down:
                log.info("etcd at %s answers again", member)
                self._down = ""
            self._has_answered = True
            return answer
        fault = EtcdUnreachable(_unreachable_text(faults))
        if self._has_answered and not self._down:
            log.warning("%s", fault)
        self._down, self._retry_at = fault.why, time.monotonic() + RETRY_S
        raise fault

    def changes(self, key: bytes, end: bytes, revision: int, limit_s: float) -> list[Any]:
        """The changes of keys from `key` up to `end` in this revision and later ones. Waits for the first one, and
        returns none after `limit_s`."""
        ends = time.monotonic() + limit_s
        watched = self.rpc.WatchCreateRequest(key=key, range_end=end, start_revision=revision)
        request = self.rpc.WatchRequest(create_request=watched)
        try:
            answers: Iterator[Any] = self._invoke(self._members[0], "Watch", "Watch", request, limit_s)
            if events := next((list(answer.events) for answer in answers if answer.events), []):
                return events
        except self._grpc.RpcError as error:
            log.debug("%s", error.details())  # that the time is over, or a fault that the next read reports
        time.sleep(max(0.0, ends - time.monotonic()))
        return []

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()

    def _ask(self, member: str, service: str, method: str, request: Any, limit_s: float) -> Any:
        try:
            return self._first(self._invoke(member, service, method, request, limit_s))
        except self._grpc.RpcError as error:
            if not self._token or not any(words in error.details() for words in OLD_TOKEN):
                raise
        self._token = ""
        return self._first(self._invoke(member, service, method, request, limit_s))

    def _first(self, answer: Any) -> Any:
        """The answer, or the first one of a stream."""
        if not isinstance(answer, self._grpc.Call):
            return answer
        first = next(answer, None)
        answer.cancel()
        if first is None:
            raise EtcdUnreachable("the connection ended without an answer")
        return first

    def _invoke(self, member: str, service: str, method: str, request: Any, limit_s: float) -> Any:
        metadata = [("hasleader", "true")]  # a member that has lost its cluster answers at once
        if self._user:
            if not self._token:
                login = self.rpc.AuthenticateRequest(name=self._user, password=self._password)
                stub = self.rpc.AuthStub(self._channel(member))
                self._token = stub.Authenticate(login, timeout=limit_s, metadata=metadata).token
            metadata.append(("token", self._token))
        stub = getattr(self.rpc, f"{service}Stub")(self._channel(member))
        sent = iter([request]) if method in STREAMS else request
        return getattr(stub, method)(sent, timeout=limit_s, metadata=metadata)

    def _channel(self, member: str) -> Any:
        if member not in self._channels:
            target = member.removeprefix("https://").removeprefix("http://")
            options = [
                ("grpc.enable_http_proxy", 0),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 1000),
                ("grpc.max_reconnect_backoff_ms", 1000),
                ("grpc.use_local_subchannel_pool", 1),
            ]
            self._channels[member] = (
                self._grpc.insecure_channel(target, options)
                if self._credentials is None
                else self._grpc.secure_channel(target, self._credentials, options)
            )
        return self._channels[member]

    def _read_credentials(self, section: NameResolveConfig, cwd: Path) -> Any:
        """None without TLS."""
        contents = []
        for name in ("etcd3_ca_cert", "etcd3_client_key", "etcd3_client_cert"):
            path = getattr(section, name)
            try:
                contents.append((cwd / Path(path).expanduser()).read_bytes() if path else None)
            except OSError as error:
                message = f"{path} cannot be read: {error.strerror}; name a file with PEM text"
                raise ConfigError([Problem(f"{SECTION}.{name}", message)]) from None
        if not any(contents) and "https://" not in section.etcd3_addr:
            return None
        return self._grpc.ssl_channel_credentials(*contents)

    def _fault(self, member: str, error: Any, limit_s: float) -> str:
        """Why the member did not answer. Raises what any other member would answer as well."""
        code, details, codes = error.code(), error.details() or "", self._grpc.StatusCode
        if "http2 header with status" in details:
            return f"HTTP status {_short(details)}, so it is no etcd"
        if code == codes.NOT_FOUND and "lease" in details:
            raise LeaseLost(details) from None
        if any(words in details for words in UNKNOWN_USER):
            given = f"does not accept the user {self._user} with this password" if self._user else "requires a user"
            message = f"etcd {given} ({_short(details)}); set it, and {SECTION}.etcd3_password or {PASSWORD}"
            raise ConfigError([Problem(USER_KEY, message)]) from None
        if "authentication is not enabled" in details:
            raise ConfigError([Problem(USER_KEY, "etcd knows no users; set it to null")]) from None
        if code == codes.PERMISSION_DENIED:
            message = (
                f"{self._user or 'nobody'} may not read and write the keys of this run, which begin with {ROOT}/ and"
            )
            remedy = "the user who starts it; grant it that prefix, or name another user"
            raise ConfigError([Problem(USER_KEY, f"{message} {remedy}")]) from None
        if any(words in details for words in NO_LEADER):
            return ""
        if code == codes.DEADLINE_EXCEEDED or any(words in details for words in LATE):
            # Otherwise a connection that was cut without a word is used until the kernel gives it up.
            self._channels.pop(member, None)
            return f"no answer within {limit_s:.2g} s"
        if code in (codes.UNAVAILABLE, codes.CANCELLED):
            return _short(details) or code.name
        troubled = (codes.RESOURCE_EXHAUSTED, codes.INTERNAL, codes.UNKNOWN, codes.ABORTED)
        if code in troubled and TOO_LARGE not in details:  # overloaded, or out of room: it may recover
            return f"it refuses calls: {_short(details) or code.name}"
        raise Failure(f"{ADDRESS_KEY}: etcd at {member} refuses a call: {_short(details) or code.name}") from None


def _short(details: str) -> str:
    """gRPC puts its own layers before the cause."""
    return details.removeprefix("etcdserver: ").rpartition(": ")[2].strip(" []")


def _unreachable_text(faults: dict[str, str]) -> str:
    """`faults`: by member; empty for one that answers without a leader."""
    silent = ", ".join(f"{member} ({why})" for member, why in faults.items() if why)
    answering = ", ".join(member for member, why in faults.items() if not why)
    if answering:
        others = f", and there is no answer from {silent}" if silent else ""
        return (
            f"etcd at {answering} has lost its quorum: it has no leader{others}; start members until more than half of "
            "them run"
        )
    return f"no etcd answers at {silent}; start it, or correct the address"
