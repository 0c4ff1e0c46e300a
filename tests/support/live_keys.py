"""A pytest plugin: with `--require-live-keys`, a run fails unless every live key was shown by a test that passed.

The promise ledger names the tests. One that was not collected, was deselected or skipped, was expected to fail, or
did not pass makes the exit status 1, and is named at the end with the keys that stand on it. Outside of CI a skip is
named and no more: what it wants, such as an environment with vLLM, may not be on this machine.
"""

import os
import re
from collections.abc import Iterable, Mapping

import pytest

_PASSED, _SKIPPED = "passed", "was skipped"
_GROUP = re.compile(r"@[^]@]+$")
"""What pytest-xdist adds to the name of a test that is in a group."""


class LiveKeys:
    """Watches a session for the tests in `required` (node id -> the keys that it keeps live).

    A node id without parameters stands for all of them.
    """

    def __init__(self, required: Mapping[str, Iterable[str]]) -> None:
        self.required = required
        self.fate: dict[str, str] = {}
        self.missing: list[str] = []
        self.not_here: list[str] = []
        """Tests that this machine lacks something for."""

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self.fate.setdefault(item.nodeid, "was not run")

    def pytest_deselected(self, items: Iterable[pytest.Item]) -> None:
        for item in items:
            self.fate[item.nodeid] = "was deselected"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = _GROUP.sub("", report.nodeid)
        earlier = self.fate.get(name, "was not run")
        if report.failed:
            self.fate[name] = f"failed in its {report.when}"
        elif hasattr(report, "wasxfail"):
            self.fate[name] = "is marked as expected to fail"
        elif report.skipped:
            self.fate[name] = _SKIPPED
        elif report.when == "call" and earlier == "was not run":
            self.fate[name] = _PASSED

    def _fates(self, test: str) -> list[str]:
        if test in self.fate:
            return [self.fate[test]]
        return [fate for name, fate in self.fate.items() if name.startswith(test + "[")] or ["was not collected"]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        for test, keys in self.required.items():
            fate = next((fate for fate in self._fates(test) if fate != _PASSED), None)
            if fate == _SKIPPED and os.environ.get("CI") != "true":
                self.not_here.append(f"{test} {fate}; it shows: {', '.join(keys)}")
            elif fate is not None:
                self.missing.append(f"{test} {fate}; it shows: {', '.join(keys)}")
        if self.missing and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for title, lines in (
            ("live keys that this machine cannot show", self.not_here),
            ("live keys without a passing test", self.missing),
        ):
            if lines:
                terminalreporter.section(title, red=lines is self.missing)
            for line in lines:
                terminalreporter.line(line)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-live-keys",
        action="store_true",
        help="fail unless every key that docs/keys.md calls live was shown by a test that passed in this run",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--require-live-keys"):
        from areal_like.config.promises.ledger import live_tests

        config.pluginmanager.register(LiveKeys(live_tests()), "areal-like-live-keys")
