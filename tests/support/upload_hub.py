"""A Hub that takes commits to datasets: the part of its protocol that creates one and uploads files to it."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.http_service import Handler, Service, served

OWNER = "owner"


class UploadHub(Service):
    """`datasets`: name -> its files; `private`: those that were created so; `down`: it refuses commits."""

    def __init__(self) -> None:
        super().__init__(_Answers)
        self.datasets: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.tokens: set[str] = set()
        self.down = False


@contextmanager
def upload_hub() -> Iterator[UploadHub]:
    with served(UploadHub()) as hub:
        yield hub


class _Answers(Handler):
    server: UploadHub

    def do_HEAD(self) -> None:
        self._give(with_body=False)

    def do_GET(self) -> None:
        if "/resolve/" in self.path:
            self._give(with_body=True)
            return
        name = self._dataset()
        files = self.server.datasets.get(name, {})
        if "/tree/" in self.path:
            self._send([{"type": "file", "path": path, "size": len(each), "oid": "0"} for path, each in files.items()])
        else:
            self._send({"id": name, "sha": "0", "siblings": [{"rfilename": path} for path in files]})

    def do_POST(self) -> None:
        self.server.tokens.add(self.headers.get("Authorization", ""))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or OWNER}/{asked['name']}"
            self.server.datasets.setdefault(name, {})
            self.server.private |= {name} if asked.get("private") or asked.get("visibility") == "private" else set()
            self._send({"url": f"{self.server.address}/datasets/{name}", "name": name})
        elif self.path == "/api/validate-yaml":
            self._send({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            fate = {"uploadMode": "regular", "shouldIgnore": False}
            self._send({"files": [{"path": each["path"], **fate} for each in files]})
        elif "/commit/" in self.path and not self.server.down:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.server.datasets[self._dataset()][line["value"]["path"]] = content
            made = f"{self.server.address}/datasets/{self._dataset()}/commit/1"
            self._send({"commitOid": "1", "commitUrl": made, "success": True})
        else:
            self._send({"error": "not now"}, 503)

    def _give(self, with_body: bool) -> None:
        file = self.path.partition("?")[0].partition("/resolve/")[2].partition("/")[2]
        content = self.server.datasets[self._dataset()].get(file)
        headers = {"ETag": f'"{hash(content)}"', "X-Repo-Commit": "0" * 40}
        self.give(404 if content is None else 200, content or b"", headers, with_body)

    def _dataset(self) -> str:
        path = self.path.removeprefix("/api").removeprefix("/datasets/")
        return "/".join(path.split("/")[:2]).partition("?")[0]

    def _send(self, answer: Any, status: int = 200) -> None:
        self.give(status, json.dumps(answer).encode(), {"Content-Type": "application/json"})
