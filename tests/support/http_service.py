"""HTTP services of tests: each in a thread of this process, on a port of its own."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import TypeVar

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Handler(BaseHTTPRequestHandler):
    """Logs nothing to the terminal."""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def give(
        self, status: int, content: bytes, headers: Mapping[str, str] = NO_HEADERS, with_body: bool = True
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(content)


class Service(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, handler: type[Handler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


S = TypeVar("S", bound=Service)


@contextmanager
def served(service: S) -> Iterator[S]:
    threading.Thread(target=service.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield service
    finally:
        service.shutdown()
        service.server_close()
