"""The built-in reward `code`: 1 for a program that passes its tests."""

import json
import socket
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import xxhash

from areal_like.config.argument_types import Count, Positive
from areal_like.process.errors import InfrastructureError
from areal_like.process.sandbox.base import End, SandboxError, SandboxLimits, SandboxResult
from areal_like.process.sandbox.program import wait_for
from areal_like.process.sandbox.sandbox import PYTHON, Sandbox, sandbox_problem
from areal_like.rollout.episodes.rewards.code import print_cases, remote_calls
from areal_like.rollout.episodes.rewards.code.fenced_block import last_python_block
from areal_like.rollout.episodes.rewards.code.row_tests import RowTests, parse_tests

OUTPUT_KB, MAX_OUTPUT_KB = 2048, 65536
"""Of one test with input and output, and of all."""
MAX_KNOWN = 1024
"""Programs of which the results are kept: more than those of the groups that one process scores at a time."""


class CodeReward:
    """Runs the last fenced block of Python of an answer against the row's `tests`: its program, by what it prints, or
    its functions, by their results. `partial`: the share of the tests that it passes, instead of all or nothing.
    `timeout_s` is for all tests of an answer; what takes longer fails, unless the machine was the reason. Many answers
    of a group are equal: a program runs once for the same tests, and again only if it took too long."""

    def __init__(
        self,
        partial: bool = False,
        timeout_s: Positive = 10.0,
        memory_gb: Positive = 1.0,
        max_tests: Count | None = None,
    ) -> None:
        self._partial, self._timeout_s, self._max_tests = partial, timeout_s, max_tests
        self._known: dict[int, float] = {}
        self._sandbox = Sandbox(SandboxLimits(wall_s=timeout_s, cpu_s=timeout_s, memory_gb=memory_gb))
        if reason := sandbox_problem(self._sandbox.kind):
            raise SandboxError(reason)
        self._remote_calls, self._print_cases_program = (
            Path(str(module.__file__)).read_text(encoding="utf-8") for module in (remote_calls, print_cases)
        )

    def __call__(
        self, prompt: Any, completion: str, tests: Any, entry_point: str | None = None, setup: str | list[str] = ""
    ) -> float:
        parsed = parse_tests(tests, entry_point, setup)
        code = last_python_block(completion)
        if code is None:
            return 0.0
        program = xxhash.xxh3_128_intdigest(f"{code}\0{parsed!r}".encode("utf-8", "surrogatepass"))
        known, began = self._known.get(program), time.monotonic()
        if known is not None:
            return known
        passed = self._print_cases(code, parsed) if parsed.cases else self._function_tests(code, parsed)
        share = sum(passed) / max(len(passed), 1)
        value = share if self._partial else float(share == 1.0)
        if time.monotonic() < began + self._timeout_s:
            self._keep(program, value)
        return value

    def _keep(self, program: int, value: float) -> None:
        """In place of the oldest."""
        if len(self._known) == MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[program] = value

    def _print_cases(self, code: str, tests: RowTests) -> list[bool]:
        """Where all must pass, the first one runs alone: most wrong programs fail it."""
        cases, left_s, starved_s = tests.cases[: self._max_tests], self._timeout_s, 0.0
        alone = 0 if self._partial else 1
        passed: list[bool] = []
        for batch in (cases[:alone], cases[alone:]):
            if batch and all(passed):
                inputs = json.dumps([given for given, _ in batch])
                files = {
                    print_cases.PROGRAM: self._print_cases_program,
                    print_cases.ANSWER: code,
                    print_cases.INPUTS: inputs,
                }
                output_kb = min(len(batch) * OUTPUT_KB, MAX_OUTPUT_KB)
                limits = replace(self._sandbox.limits, wall_s=left_s, output_kb=output_kb)
                result = self._sandbox.run([*PYTHON, print_cases.PROGRAM], files=files, limits=limits)
                left_s, starved_s = max(left_s - result.wall_s, 0.0), starved_s + result.starved_s
                self._check_machine(result._replace(wall_s=self._timeout_s, starved_s=starved_s))
                lines = [*result.stdout.splitlines(), *[b""] * len(batch)]
                passed += [_is_right(line, expected) for line, (_, expected) in zip(lines, batch, strict=False)]
        return passed

    def _function_tests(self, code: str, tests: RowTests) -> list[bool]:
        """The tests run in one sandbox, the answer's functions in another."""
        asserts, calls = tests.asserts[: self._max_tests], tests.calls[: self._max_tests]
        content = {"setup": tests.setup, "entry_point": tests.entry_point, "asserts": asserts, "calls": calls}
        files = {"remote_calls.py": self._remote_calls}
        with ExitStack() as stack:
            ours, theirs = (stack.enter_context(end) for end in socket.socketpair())

            def start(role: str, wire: socket.socket, **more: str) -> Any:
                command = [*PYTHON, "remote_calls.py", role, str(wire.fileno())]
                program = self._sandbox.start(command, files=files | more, pass_fds=(wire.fileno(),))
                wire.close()
                return stack.enter_context(closing(program))

            answer = start("serve", theirs, **{remote_calls.ANSWER: code})
            checks = start("check", ours, **{remote_calls.TESTS: json.dumps(content)})
            result = wait_for(checks, answer)
        self._check_machine(result)
        if result.end is not End.EXIT or not result.stdout:
            return [False] * (len(asserts) + len(calls))
        verdict = json.loads(result.stdout.splitlines()[-1])
        if "broken" in verdict:
            raise ValueError(f"the row's tests cannot run: {verdict['broken']}")
        return [not reason for reason in verdict["results"]]

    def _check_machine(self, result: SandboxResult) -> None:
        if result.is_starved:
            waited = f"waited {result.starved_s:.1f} s for a processor"
            raise InfrastructureError(f"a program exceeded timeout_s={self._timeout_s:g}, but {waited}")


def _is_right(line: bytes, expected: str) -> bool:
    """`line`: of `print_cases`; empty or cut off if the program was ended before."""
    try:
        code, text = json.loads(line)
    except ValueError:
        return False
    return bool(code == 0 and printed(text) == printed(expected))


def printed(text: str) -> list[str]:
    """Lines without white space at their ends, and without empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]
