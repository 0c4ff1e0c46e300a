"""A thread that sends the newest weights whenever the controller has servers for them.

It keeps the newest version for servers that join later. It sends a copy, so that training goes on meanwhile: in main
memory, where two versions alternate, or one in the memory of the GPU, which is not written while it is sent.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable

import torch

from areal_like.process import pulse
from areal_like.process.errors import Unreachable
from areal_like.process.patience import WaitLimit
from areal_like.process.wait import NamedWait
from areal_like.weights.collective import CPU, BroadcastGroup, BroadcastHost
from areal_like.weights.errors import GroupBroken
from areal_like.weights.flat_buckets import FlatWeights
from areal_like.weights.kept_group import KeptGroup
from areal_like.weights.own_stream import own_stream
from areal_like.weights.rendezvous import Rendezvous

PAUSE_S = 0.2

log = logging.getLogger(__name__)


Ask = Callable[[str, dict[str, object]], dict[str, object]]
"""Path and body -> the controller's answer, callable from the thread."""


class WeightSender:
    """The trainer's main thread calls `offer`, `take_buffer` and `take_newest`."""

    def __init__(self, host: BroadcastHost, ask: Ask, limit: WaitLimit, device: torch.device = CPU) -> None:
        self._group, self._ask, self._limit, self._device = KeptGroup(device, host), ask, limit, device
        self._newest: FlatWeights | None = None
        self._sending: FlatWeights | None = None
        """Being sent, or about to be."""
        self._free_buffer: FlatWeights | None = None
        self._changed = threading.Condition()
        self._is_closing = False
        self._rows_left: object = 0
        """Of the current evaluation, by the controller's last answer."""
        self._is_parked = False
        """Whether it asks for no servers, as the newest version is about to be overwritten."""
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._main, name="weights: send", daemon=True)
        self._thread.start()

    def take_buffer(self) -> FlatWeights | None:
        """Memory of a version that is no longer needed."""
        with self._changed:
            buffer, self._free_buffer = self._free_buffer, None
            return buffer

    def take_newest(self) -> FlatWeights | None:
        """The memory of the newest version, once nobody needs it: it is the only one."""
        with self._changed:
            self._is_parked = True
            is_asking = self._sending is not None
        if is_asking and self._newest is not None:
            with contextlib.suppress(Unreachable):  # then no server gets them either
                self._ask("/withdraw", {"version": self._newest.index.version})
        waiting = NamedWait("the weights before to be sent", *self._limit)
        with self._changed:
            while self._sending is not None and self._thread.is_alive():
                self._changed.wait(PAUSE_S)
                waiting.check()
            newest, self._newest, self._is_parked = self._newest, None, False
        if self._fault is not None:
            raise self._fault
        return newest

    def offer(self, flat: FlatWeights) -> None:
        if self._fault is not None:
            raise self._fault
        with self._changed:
            if self._newest is not self._sending:
                self._free_buffer = self._newest
            self._newest = flat
            self._changed.notify_all()

    def close(self, early: bool) -> None:
        """Until the controller needs no weights: a server may still join and need the last version."""
        self._is_closing = True
        waiting, rows_left = self._until_over(), self._rows_left
        while self._thread.is_alive() and self._newest is not None and not early:
            self._thread.join(PAUSE_S)
            if self._rows_left != rows_left:  # progress of the last evaluation restarts the timeout
                waiting, rows_left = self._until_over(), self._rows_left
            waiting.check()
        if self._fault is not None and not early:
            raise self._fault

    def _until_over(self) -> NamedWait:
        return NamedWait("the controller to need no more weights", *self._limit)

    def _main(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as fault:
            log.exception("sending weights failed")
            self._fault = fault
        finally:
            self._group.leave()

    def _turn(self) -> bool:
        """Returns whether to continue."""
        with self._changed:
            while self._newest is None or self._is_parked:
                self._changed.wait()
            sending = self._sending = self._newest
        try:
            answer = self._ask("/send", {"version": sending.index.version, "kept": self._group.name})
            self._rows_left = answer.get("evaluating", 0)
            if isinstance(rendezvous := answer.get("meeting"), dict):
                self._send(sending, Rendezvous(**rendezvous))
            return not answer.get("end")
        except Unreachable:
            time.sleep(PAUSE_S)  # the launcher handles a dead controller
            return not self._is_closing
        finally:
            with self._changed:
                self._sending = None
                if self._newest is not sending:
                    self._free_buffer = sending
                self._changed.notify_all()

    def _send(self, flat: FlatWeights, rendezvous: Rendezvous) -> None:
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            try:
                group = stack.enter_context(self._group.opened(rendezvous))
            except GroupBroken as broken:  # after a lost connection: the controller offers another one soon
                log.warning("weights v%d are sent again: %s", flat.index.version, broken)
                time.sleep(PAUSE_S)
                return
            watch = threading.Thread(target=self._watch, args=(group, rendezvous), name="weights: watch", daemon=True)
            watch.start()
            try:
                with pulse.phase(pulse.PUBLISHING) as work:
                    group.join()
                    with own_stream(self._device):
                        for content in flat.contents:
                            group.send(content)
                            work.advance()
                        group.finish()
            except GroupBroken as broken:
                log.warning("weights v%d did not reach all servers: %s", flat.index.version, broken)
            else:
                log.debug("weights v%d sent in %.3f s", flat.index.version, time.monotonic() - began)
            watch.join()

    def _watch(self, group: BroadcastGroup, rendezvous: Rendezvous) -> None:
        """Until the controller reports the end of the group: all received the weights, or a member failed."""
        while True:
            try:
                answer = self._ask("/sending", {"group": rendezvous.group})
            except Exception as fault:
                group.abort(f"the controller does not answer the trainer ({fault})")
                return
            if answer.get("over"):
                if reason := answer.get("why"):
                    group.abort(str(reason))
                return
