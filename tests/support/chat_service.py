"""A small OpenAI-compatible service, for evaluations over HTTP: it adds numbers, or answers as a test says."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from tests.support.http_service import NO_HEADERS, Handler, Service, served

KEY = "sk-of-the-test"


class Reply(NamedTuple):
    """`headers` and the raw body of an answer."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = NO_HEADERS


def completion(text: str | None, finish: str = "stop") -> Reply:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    return Reply(body=json.dumps({"choices": [choice], "usage": {"completion_tokens": 1}}).encode())


def added(body: dict[str, Any]) -> Reply:
    """The sum that the last message asks for, as `1+2=`."""
    first, _, second = body["messages"][-1]["content"].rstrip("=").partition("+")
    return completion(str(int(first) + int(second)))


class ChatService:
    """`answer(body)` gives the reply to each request; `asked` are the bodies that came with the right key."""

    def __init__(self, answer: Callable[[dict[str, Any]], Reply]) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []
        self.running = self.most_running = 0
        self.changed = threading.Condition()

    @property
    def prompts(self) -> list[str]:
        return [each["messages"][-1]["content"] for each in self.asked]

    def wait_for(self, count: int, limit_s: float = 240.0) -> None:
        """Until so many requests came."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.asked) >= count, limit_s), f"{len(self.asked)} requests came"

    def _reply(self, key: str | None, body: dict[str, Any]) -> Reply:
        if key != f"Bearer {KEY}":
            return Reply(401, b'{"error": "no such key"}')
        with self.changed:
            self.asked.append(body)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            self.changed.notify_all()
        try:
            return self.answer(body)
        finally:
            with self.changed:
                self.running -= 1


@contextmanager
def chat_service(answer: Callable[[dict[str, Any]], Reply] = added) -> Iterator[tuple[ChatService, str]]:
    """The service and its address."""
    service = ChatService(answer)

    class Answers(Handler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            right = self.path == "/v1/chat/completions"
            reply = service._reply(self.headers.get("Authorization"), body) if right else Reply(404, b"no such path")
            with suppress(OSError):  # the client is gone
                self.give(reply.status, reply.body, reply.headers)

    with served(Service(Answers)) as server:
        yield service, f"{server.address}/v1"
