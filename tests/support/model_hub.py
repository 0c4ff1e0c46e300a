"""A Hub with one model or dataset: the part of its protocol that fetches snapshots, over real HTTP."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.http_service import Handler, Service, served

NAME, REVISION = "org/tiny", "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def hub(folder: Path, more: dict[str, bytes] | None = None, kind: str = "models", name: str = NAME) -> Iterator["Hub"]:
    """It has the files of `folder`, and `more`, as the model or dataset `name` in the revision `REVISION`."""
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()} | (more or {})
    with served(Hub(files, kind, name)) as server:
        yield server


class Hub(Service):
    """`requests`: paths of all requests; `given`: files that were fetched. If `down`, it answers 503."""

    def __init__(self, files: dict[str, bytes], kind: str, name: str = NAME) -> None:
        super().__init__(_Answers)
        self.files, self.kind, self.name, self.down = files, kind, name, False
        self.requests, self.given = list[str](), list[str]()


class _Answers(Handler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        path, files = self.path.partition("?")[0], self.server.files
        self.server.requests.append(path)
        name, kind = self.server.name, self.server.kind
        api, at = f"/api/{kind}/{name}", f"/{name}" if kind == "models" else f"/datasets/{name}"
        if self.server.down:
            self._send(503, b"", with_body)
            return
        file = path.rpartition(f"/resolve/{REVISION}/")[2]
        if path.startswith(f"{at}/resolve/") and file in files:
            if with_body:
                self.server.given.append(file)
            self._send(200, files[file], with_body)
        elif path.startswith(f"{api}/tree/"):
            entries = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in files.items()
            ]
            self._send(200, json.dumps(entries).encode(), with_body)
        elif path in (api, f"{api}/revision/main", f"{api}/revision/{REVISION}"):
            siblings = [{"rfilename": name, "size": len(content)} for name, content in files.items()]
            facts = {
                "id": self.server.name,
                "sha": REVISION,
                "siblings": siblings,
                "private": False,
                "tags": [],
                "downloads": 0,
            }
            self._send(200, json.dumps(facts).encode(), with_body)
        else:
            self.give(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _send(self, status: int, content: bytes, with_body: bool) -> None:
        headers = {"X-Repo-Commit": REVISION, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
        self.give(status, content, headers, with_body)


def in_cache(
    cache: Path, files: dict[str, str], revision: str = REVISION, main: bool = True, kind: str = "models"
) -> Path:
    """A snapshot as huggingface_hub lays it out."""
    repository = cache / f"{kind}--{NAME.replace('/', '--')}"
    snapshot = repository / "snapshots" / revision
    snapshot.mkdir(parents=True)
    for file, content in files.items():
        (snapshot / file).write_text(content, encoding="utf-8")
    if main:
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text(revision, encoding="utf-8")
    if kind == "datasets":
        list_files(snapshot)
    return snapshot


def list_files(snapshot: Path, *more: str) -> None:
    """As the download of a whole dataset does; `more` are files that it left out."""
    names = [str(file.relative_to(snapshot)) for file in snapshot.rglob("*") if file.is_file()]
    listing = snapshot.parents[1] / "trees" / f"{snapshot.name}.json"
    listing.parent.mkdir(exist_ok=True)
    listing.write_text(json.dumps({"files": {name: {} for name in (*names, *more)}}), encoding="utf-8")
