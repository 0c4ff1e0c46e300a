"""Starts the processes of a reward: the worker's handle of the template that imports it once."""

import asyncio
import itertools
import os
import signal
import socket
import sys
import time
from typing import Any

import orjson

from areal_like.data.exact_json import dump_json
from areal_like.data.user_code import config_error
from areal_like.process.child_process import ChildProcess
from areal_like.process.identity import SECRETS, TOKEN, has_token, shown_variables, token
from areal_like.process.process_tree import descendants_of, kill, process_info
from areal_like.process.sandbox.sandbox import SANDBOX
from areal_like.rollout.episodes.rewards import RewardSpec
from areal_like.rollout.episodes.rewards.limits import RewardLimits

PACKET_BYTES = 1 << 20
KILL_TIMEOUT_S, POLL_INTERVAL_S = 5.0, 0.005
"""A process that hangs in the kernel for longer is left behind; the launcher kills it at the end."""
END_TIMEOUT_S = 1.0
"""After the template has closed its socket, it ends within this time."""
STOPPED, STOPPED_S = "T", 5.0
"""An import that is stopped at two looks in a row, so far apart, is given up."""


class StarterLost(Exception):
    """The template has ended, and every process that it has forked."""


class RewardStarter:
    """Starts the template, which imports the reward in the background."""

    _numbers = itertools.count()

    def __init__(self, spec: RewardSpec, timeout_s: float, limits: RewardLimits) -> None:
        self._spec, self._was_stopped = spec, False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        secrets = {name: os.environ[name] for name in SECRETS if name in os.environ} if spec.queries_model else {}
        if spec.queries_model and has_token():
            secrets[TOKEN] = token()
        request = {"reward": spec._asdict(), "timeout_s": timeout_s, "limits": list(limits), "secrets": secrets}
        self._control.send(dump_json(request))
        self._control.setblocking(False)
        with theirs:
            descriptor = theirs.fileno()
            command = [sys.executable, "-m", "areal_like.rollout.episodes.rewards.processes.reward_template"]
            self.keeper = ChildProcess(
                [*command, str(descriptor), str(os.getpid())],
                shown_variables(dump_json(spec._asdict())) | {SANDBOX: spec.sandbox},
                stdout=2,  # what is printed while the reward is imported goes to the log
                pass_fds=(descriptor,),
            )

    async def loaded(self, limit_s: float) -> dict[str, Any]:
        """What the template answers once it has imported the reward. Raises ConfigError if it cannot."""
        try:
            reply = await asyncio.wait_for(self._reply(), limit_s)
        except TimeoutError:
            await self.close()
            message = f"importing {self._spec.title} took longer than {limit_s:g} s (rollout.setup_timeout)"
            raise config_error(self._spec.key, message) from None
        except ConnectionError:
            reply = b""
        if self._was_stopped:
            await self.close()
            raise config_error(self._spec.key, f"the process that imports {self._spec.title} is stopped by a signal")
        if not reply:
            how = await self.close(END_TIMEOUT_S)
            raise config_error(self._spec.key, f"the process that imported {self._spec.title} ended with {how}")
        message = orjson.loads(reply)
        if "problem" in message:
            await self.close()
            error = config_error(*message["problem"])
            error.add_note(message["trace"])
            raise error
        return dict(message)

    async def _reply(self) -> bytes:
        """Empty from a template that a signal has stopped, or that has ended."""
        reading = asyncio.create_task(asyncio.get_running_loop().sock_recv(self._control, PACKET_BYTES))
        was_stopped = False
        try:
            while not (await asyncio.wait({reading}, timeout=STOPPED_S))[0]:
                is_stopped = self._is_stopped()
                self._was_stopped = was_stopped and is_stopped
                if self._was_stopped:
                    return b""
                was_stopped = is_stopped
            return await reading
        finally:
            reading.cancel()

    def _is_stopped(self) -> bool:
        template = [process_info(self.keeper.pid), *descendants_of(self.keeper.pid)]
        return any(each.state == STOPPED for each in template if each is not None and each.session == self.keeper.pid)

    @property
    def was_killed(self) -> bool:
        """From outside, or stopped: nothing that a reward does on import."""
        return self._was_stopped or self.keeper.exit_code() == -signal.SIGKILL

    def start(self) -> tuple[int, socket.socket]:
        """Starts a process: its number, and the socket to exchange lines with it."""
        number = next(self._numbers)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"start %d" % number], [theirs.fileno()])
            except OSError as fault:
                ours.close()
                raise StarterLost from fault
        return number, ours

    def end(self, number: int) -> None:
        """Kills a process with everything it has started."""
        self._command(b"end %d" % number)
        for each in descendants_of(self.keeper.pid):
            if each.session == self.keeper.pid:  # the template, which something may have stopped
                kill([each.pid], signal.SIGCONT)

    def lower(self, number: int) -> None:
        """Lets all other processes go first."""
        self._command(b"lower %d" % number)

    def _command(self, packet: bytes) -> None:
        try:
            self._control.send(packet)
        except OSError:  # the template has ended, and with it the process
            return

    async def close(self, grace_s: float = 0.0) -> str:
        """Kills the template after `grace_s` seconds to end by itself, and all its processes. Returns how it ended."""
        how = await self._wait(grace_s)
        self.keeper.signal(signal.SIGTERM)
        self.keeper.signal(signal.SIGCONT)  # what a reward runs may have stopped it
        self._control.close()
        how = how or await self._wait(KILL_TIMEOUT_S)
        if how is None:
            self.keeper.kill()
        return how or "it cannot be killed"

    async def _wait(self, limit_s: float) -> str | None:
        until = time.monotonic() + limit_s
        while (code := self.keeper.exit_code()) is None and time.monotonic() < until:
            await asyncio.sleep(POLL_INTERVAL_S)
        return None if code is None else exit_text(code)


def exit_text(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
