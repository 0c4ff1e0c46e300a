"""Child process that imports a reward once, and forks a process for each that the worker asks for.

Its commands are packets over a socket: `start N` with the socket of process N, `end N`, and `lower N`, which lets all
others go first. A reward that leaves threads or open files when it is imported cannot be forked: then each process
imports it by itself.
"""

import gc
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

import orjson

from areal_like.config.problems import ConfigError
from areal_like.config.redact import secret_values
from areal_like.data.exact_json import parse_json
from areal_like.process.keeper import end_as, fork_keeper
from areal_like.process.process_tree import descendants_of, die_with_parent
from areal_like.process.scrubbed_output import know_secrets, scrub_output
from areal_like.rollout.episodes.rewards import RewardSpec, load_reward
from areal_like.rollout.episodes.rewards.limits import RewardLimits
from areal_like.rollout.episodes.rewards.processes.reward_worker import LoadedReward, run_reward
from areal_like.rollout.episodes.rewards.weighted_sum import WeightedSum

PACKET_BYTES = 1 << 20
TRACE_CHARACTERS = 1 << 15
CANNOT_FORK = 113
"""Exit code of the process that has imported a reward which cannot be forked."""
LOWEST_PRIORITY = 19

log = logging.getLogger(__name__)


def main() -> None:
    descriptor, worker = int(sys.argv[1]), int(sys.argv[2])
    fork_keeper(worker, close=[descriptor])
    os.set_inheritable(descriptor, False)
    with socket.socket(fileno=descriptor) as control:
        request = parse_json(control.recv(PACKET_BYTES))
        know_secrets(secret_values(request["reward"], frozenset()))
        spec, limits = RewardSpec(**request["reward"]), RewardLimits(*request["limits"])
        template = _Template(control, spec, request["timeout_s"], limits, request["secrets"])
        importing = os.fork()
        if importing == 0:
            die_with_parent()
            template.import_and_serve()
        code = os.waitstatus_to_exitcode(os.waitpid(importing, 0)[1])
        if code == CANNOT_FORK:
            template.serve(template.load)
        end_as(code)


class _Template:
    def __init__(
        self,
        control: socket.socket,
        spec: RewardSpec,
        timeout_s: float,
        limits: RewardLimits,
        secrets: Mapping[str, str],
    ) -> None:
        self._control, self._spec, self._timeout_s, self._limits = control, spec, timeout_s, limits
        self._secrets = secrets
        self._keepers: dict[int, int] = {}
        """Process ids of the keepers by number."""

    def import_and_serve(self) -> NoReturn:
        files_before = _open_files()
        try:
            call = self._find()
        except ConfigError as error:
            cause = "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""
            first = error.problems[0]
            self._reply({"problem": [first.key, first.message], "trace": cause[-TRACE_CHARACTERS:]})
            os._exit(0)
        if call is None:
            self._reply({"loaded": False})
            os._exit(0)
        can_fork = len(os.listdir("/proc/self/task")) == 1 and _open_files() <= files_before
        others = list(call.others) if isinstance(call, WeightedSum) else []
        facts = {"async": call.is_async, "needs": call.needs, "others": others, "can_fork": can_fork}
        self._reply({"loaded": True, **facts})
        if not can_fork:
            os._exit(CANNOT_FORK)
        gc.collect()
        gc.freeze()  # collections in forks would copy the pages that they share
        self.serve(lambda: call)

    def load(self) -> LoadedReward:
        """In a process that imports the reward by itself, which was possible before."""
        call = self._find()
        assert call is not None, "it was there before"
        return call

    def serve(self, load: Callable[[], LoadedReward]) -> NoReturn:
        """Until the worker closes the socket."""
        while True:
            packet, descriptors, _, _ = socket.recv_fds(self._control, PACKET_BYTES, 1)
            if not packet:
                os._exit(0)
            self._reap()
            word, number = packet.decode().split()
            if word == "start":
                self._start(int(number), descriptors[0], load)
            elif keeper := self._keepers.get(int(number)):
                if word == "end":
                    os.kill(keeper, signal.SIGTERM)
                    os.kill(keeper, signal.SIGCONT)  # what a reward runs may have stopped its keeper
                else:
                    _lower(keeper)

    def _find(self) -> LoadedReward | None:
        os.environ.update(self._secrets)
        try:
            return load_reward(self._spec)
        finally:
            for name in self._secrets:  # whoever needs them has read them
                del os.environ[name]

    def _reply(self, message: dict[str, Any]) -> None:
        self._control.sendall(orjson.dumps(message))

    def _start(self, number: int, descriptor: int, load: Callable[[], LoadedReward]) -> None:
        owner = os.getpid()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        try:
            pid = os.fork()
        except OSError as fault:  # the worker sees that its socket is closed
            log.error("no process can be started for a reward: %s", fault)
            os.close(descriptor)
            return
        if pid == 0:
            try:
                self._control.close()
                os.set_inheritable(descriptor, False)
                run_reward(socket.socket(fileno=descriptor), owner, load, self._timeout_s, self._limits)
            except BaseException:
                log.exception("the process of a reward failed")
            finally:
                os._exit(1)
        self._keepers[number] = pid
        os.close(descriptor)

    def _reap(self) -> None:
        for number, pid in list(self._keepers.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self._keepers[number]


def _open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def _lower(keeper: int) -> None:
    for process in descendants_of(keeper):
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, process.pid, LOWEST_PRIORITY)


if __name__ == "__main__":
    scrub_output()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    main()
