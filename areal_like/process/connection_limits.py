"""Connection limits of a server: closes silent connections, and bounds those of callers without the run's token."""

import asyncio
import logging
import resource
from collections.abc import Callable
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

HEADERS_TIMEOUT_S = 10.0
"""Time for the headers of a connection's first request."""
KEEPALIVE_S = 120.0
"""Idle time after which a kept-alive connection is closed."""
MAX_UNKNOWN = 4096
"""Connections of callers without the token. A new one closes the oldest."""


Handler = web.RequestHandler


class LimitedAppRunner(web.AppRunner):
    """aiohttp's AppRunner with these limits. A connection counts as unknown until a request on it shows the token."""

    def __init__(self, app: web.Application, shutdown_s: float) -> None:
        self._silent: set[Handler] = set()
        self._unknown: dict[Handler, bool] = {}
        """Oldest first; whether the time for its headers is over. Until then a handler without a transport may be
        about to get one."""
        self._most = max(16, min(MAX_UNKNOWN, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))
        app[RUNNER] = self
        super().__init__(
            app,
            access_log=None,
            shutdown_timeout=shutdown_s,
            keepalive_timeout=KEEPALIVE_S,
            auto_decompress=False,
            logger=_log(),
        )

    @property
    def server(self) -> Any:
        """The factory of connection handlers."""
        make = cast("Callable[[], Handler] | None", super().server)
        if make is None:
            return None

        def connected() -> Handler:
            handler = make()
            self._silent.add(handler)
            self._unknown[handler] = False
            if len(self._unknown) > self._most:
                self._make_room()
            asyncio.get_running_loop().call_later(HEADERS_TIMEOUT_S, self._close_if_silent, handler)
            return handler

        return connected

    def on_request(self, request: web.Request, is_known: bool) -> None:
        """To be called for each request, once its headers have arrived."""
        self._silent.discard(request.protocol)
        if is_known:
            self._unknown.pop(request.protocol, None)

    def _make_room(self) -> None:
        closed = [one for one, is_over in self._unknown.items() if is_over and one.transport is None]
        for handler in closed or [next(iter(self._unknown))]:
            del self._unknown[handler]
            if handler.transport is not None:
                handler.transport.abort()

    def _close_if_silent(self, handler: Handler) -> None:
        if handler in self._silent or handler.transport is None:
            self._silent.discard(handler)
            self._unknown.pop(handler, None)
            if handler.transport is not None:
                handler.transport.abort()
        elif handler in self._unknown:
            self._unknown[handler] = True


RUNNER: web.AppKey[LimitedAppRunner] = web.AppKey("runner", LimitedAppRunner)


class _ShortErrors(logging.Filter):
    """Logs a request that is not HTTP as one line, without a traceback. Drops the error that aiohttp (3.14) logs for a
    call that is still pending at shutdown: `shutdown` has cancelled the future that the call's end sets."""

    def filter(self, record: logging.LogRecord) -> bool:
        fault = record.exc_info[1] if record.exc_info else None
        if isinstance(fault, asyncio.InvalidStateError):
            return False
        if isinstance(fault, HttpProcessingError):
            record.msg, record.args = "a request that is not valid HTTP: %s", (fault.message.splitlines()[:1],)
            record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


def _log() -> logging.Logger:
    log = logging.getLogger(__name__)
    if not any(isinstance(each, _ShortErrors) for each in log.filters):
        log.addFilter(_ShortErrors())
    return log
