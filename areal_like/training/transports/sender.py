"""The thread that sends weights when the controller has servers for them, as often as it has.

It keeps the newest version, so that a server which comes later is sent it as well. What is sent is a copy: the trainer
goes on meanwhile.
"""

import logging
import threading
import time
from collections.abc import Callable

from areal_like.process.errors import Unreachable
from areal_like.process.wait import NamedWait
from areal_like.weights.collective import BroadcastGroup, BroadcastHost
from areal_like.weights.errors import GroupBroken
from areal_like.weights.flat_buckets import FlatWeights
from areal_like.weights.rendezvous import Rendezvous

PAUSE_S = 0.2

log = logging.getLogger(__name__)


Ask = Callable[[str, dict[str, object]], dict[str, object]]
"""Path and body -> the answer of the controller, as a thread by itself calls it."""


class WeightSender:
    """`give` and `take_room` are called by the trainer's own thread."""

    def __init__(self, host: BroadcastHost, ask: Ask, limit_s: float) -> None:
        self._host, self._ask, self._limit_s = host, ask, limit_s
        self._newest: FlatWeights | None = None
        self._held: FlatWeights | None = None
        """What is being sent, or may be at any moment."""
        self._room: FlatWeights | None = None
        self._changed = threading.Condition()
        self._ends = False
        self._rows_left: object = 0
        """Of the evaluation under way, as the controller has said last."""
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._main, name="weights: send", daemon=True)
        self._thread.start()

    def take_buffer(self) -> FlatWeights | None:
        """Memory of a version that nobody needs any more."""
        with self._changed:
            room, self._room = self._room, None
            return room

    def give(self, flat: FlatWeights) -> None:
        if self._fault is not None:
            raise self._fault
        with self._changed:
            if self._newest is not self._held:
                self._room = self._newest
            self._newest = flat
            self._changed.notify()

    def close(self, early: bool) -> None:
        """As long as the controller is there a server may come that wants the last version."""
        self._ends = True
        waiting, rows_left = self._until_over(), self._rows_left
        while self._thread.is_alive() and self._newest is not None and not early:
            self._thread.join(PAUSE_S)
            if self._rows_left != rows_left:  # the last evaluation goes on, so the limit begins anew
                waiting, rows_left = self._until_over(), self._rows_left
            waiting.check()
        if self._fault is not None and not early:
            raise self._fault

    def _until_over(self) -> NamedWait:
        return NamedWait("the controller to need no weights any more", self._limit_s, "rollout.request_timeout")

    def _main(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as fault:
            log.exception("weights cannot be sent any more")
            self._fault = fault

    def _turn(self) -> bool:
        """Whether there may be another."""
        with self._changed:
            while self._newest is None:
                self._changed.wait()
            held = self._held = self._newest
        try:
            said = self._ask("/send", {"version": held.index.version})
            self._rows_left = said.get("evaluating", 0)
            if isinstance(meeting := said.get("meeting"), dict):
                self._send(held, Rendezvous(**meeting))
            return not said.get("end")
        except Unreachable:
            time.sleep(PAUSE_S)  # a controller that is gone is the launcher's business
            return not self._ends
        finally:
            with self._changed:
                self._held = None
                if self._newest is not held:
                    self._room = held

    def _send(self, flat: FlatWeights, meeting: Rendezvous) -> None:
        began = time.monotonic()
        with self._host.open(meeting) as group:
            watch = threading.Thread(target=self._watch, args=(group,), name="weights: watch", daemon=True)
            watch.start()
            try:
                group.meet()
                for content in flat.contents:
                    group.send(content)
            except GroupBroken as broken:
                log.warning("weights v%d did not reach all servers: %s", flat.index.version, broken)
            else:
                log.debug("weights v%d are sent in %.3f s", flat.index.version, time.monotonic() - began)
            watch.join()

    def _watch(self, group: BroadcastGroup) -> None:
        """Until the controller says that the group is over: all have what was sent, or one of them cannot."""
        while True:
            try:
                said = self._ask("/sending", {"group": group.meeting.group})
            except Exception as fault:
                group.abort(f"the controller does not answer the trainer ({fault})")
                return
            if said.get("over"):
                if why := said.get("why"):
                    group.abort(str(why))
                return
