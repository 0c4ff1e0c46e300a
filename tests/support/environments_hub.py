"""An Environments Hub on this machine: the part of its protocol that finds environments and takes evaluations."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.http_service import Handler, Service, served

API = "/api/v1"


def require_client() -> None:
    """Where tests must not be skipped, those that push fail without it."""
    if not os.environ.get("CI"):
        pytest.importorskip("prime_evals")


class EnvironmentsHub(Service):
    """`environments` that it knows, by owner and name or by name alone; `evaluations`: id -> what was pushed of it;
    `fails`: ends of the paths of requests that it answers with an error; `key` of the only login."""

    def __init__(self, key: str, *environments: str) -> None:
        super().__init__(_Answers)
        self.key, self.environments = key, set(environments)
        self.evaluations: dict[str, dict[str, Any]] = {}
        self.fails: set[str] = set()


@contextmanager
def environments_hub(key: str, *environments: str) -> Iterator[EnvironmentsHub]:
    with served(EnvironmentsHub(key, *environments)) as hub:
        yield hub


class _Answers(Handler):
    server: EnvironmentsHub

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0)))))

    def _answer(self, asked: Any) -> None:
        path, evaluations = self.path.removeprefix(API), self.server.evaluations
        if self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self._send({"detail": f"no login: {self.headers.get('Authorization')}"}, 401)
        elif any(path.endswith(end) for end in self.server.fails):
            self._send({"detail": f"not now, {self.server.key}"}, 503)
        elif path == "/environmentshub/resolve":
            self._find(asked["name"])
        elif path.startswith("/environmentshub/") and path.endswith("/@latest"):
            self._find(path.removeprefix("/environmentshub/").removesuffix("/@latest"))
        elif path == "/evaluations/":
            number = f"ev{len(evaluations) + 1}"
            evaluations[number] = {**asked, "samples": [], "finalized": False}
            self._send({"evaluation_id": number})
        elif path.startswith("/evaluations/") and path.endswith("/samples"):
            evaluations[path.split("/")[2]]["samples"] += asked["samples"]
            self._send({"samples_pushed": len(asked["samples"])})
        elif path.startswith("/evaluations/") and path.endswith("/finalize"):
            evaluations[path.split("/")[2]] |= {"finalized": True, "metrics": asked["metrics"]}
            self._send({"status": "COMPLETED"})
        else:
            self._send({"detail": f"no {path}"}, 405)

    def _find(self, name: str) -> None:
        if name in self.server.environments:
            self._send({"data": {"id": f"id of {name}"}})
        else:
            self._send({"detail": "Environment not found"}, 404)

    def _send(self, answer: Any, status: int = 200) -> None:
        self.give(status, json.dumps(answer).encode(), {"Content-Type": "application/json"})
