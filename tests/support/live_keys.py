"""A pytest plugin: with `--require-live-keys`, a run fails unless a test that passed showed every key that docs/keys.md
calls live, ours, same as another, or without effect.

Tests name their keys by the markers `shows` and `shows_no_effect` (docs/make/key_markers.py). Keys whose tests were all
skipped, because this machine lacks an engine for example, are listed apart; they fail the run as well, unless
`--allow-unchecked-keys` is given.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from docs.make.key_markers import ROOT, keys_of

KEYS_PAGE = ROOT / "docs" / "keys.md"
PROPERTY = "key shown"
_PASSED, _SKIPPED = "passed", "was skipped"
_GROUP = re.compile(r"@[^@]+$")
"""Suffix that pytest-xdist adds to the name of a test in a group."""
_UNCHECKED_HINT = (
    "environments with vLLM and SGLang check most of them: `make vllm-cpu`, `make sglang-cpu`. To pass without: "
    "--allow-unchecked-keys (`make test TEST_ARGS=--allow-unchecked-keys`)"
)


def keys_on_page(page: Path) -> dict[str, tuple[str, ...]]:
    """Dotted key -> names of its tests, of every row of docs/keys.md whose state a test shows."""
    keys: dict[str, tuple[str, ...]] = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
        if len(cells) == 6 and re.match(r"live|ours|same as|no effect", cells[3]):
            tests = tuple(re.findall(r"`(tests/[^`]+)`", cells[4]))
            keys |= {path: tests for path in re.findall(r"`([^`]+)`", cells[2])}
    return keys


class LiveKeys:
    """Watches a session for tests that show the keys in `required` (dotted key -> names of its tests)."""

    def __init__(self, required: Mapping[str, tuple[str, ...]], allow_unchecked: bool = False) -> None:
        self.required = required
        self.allow_unchecked = allow_unchecked
        self.results_by_test: dict[str, str] = {}
        """Test -> its outcome."""
        self.tests: dict[str, list[str]] = {}
        """Key -> its tests in this run."""
        self.missing: list[str] = []
        self.unchecked: list[str] = []

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        # A property comes with the reports of a test, from workers of pytest-xdist too.
        item.user_properties += [(PROPERTY, key) for key in keys_of(item)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = _GROUP.sub("", report.nodeid)
        keys = [value for name, value in report.user_properties if name == PROPERTY]
        for key in keys if test not in self.results_by_test else ():
            self.tests.setdefault(str(key), []).append(test)
        earlier = self.results_by_test.setdefault(test, "was not run")
        if report.failed:
            self.results_by_test[test] = f"failed in its {report.when}"
        elif hasattr(report, "wasxfail"):
            self.results_by_test[test] = "is marked as expected to fail"
        elif report.skipped:
            self.results_by_test[test] = _SKIPPED
        elif report.when == "call" and earlier == "was not run":
            self.results_by_test[test] = _PASSED

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        for key, names in self.required.items():
            results_by_test = {test: self.results_by_test[test] for test in self.tests.get(key, ())}
            if _PASSED in results_by_test.values():
                continue
            outcomes = "; ".join(f"{test} {fate}" for test, fate in results_by_test.items())
            line = f"{key}: {outcomes or 'no test in this run (' + (', '.join(names) or 'none is marked') + ')'}"
            (self.unchecked if {*results_by_test.values()} == {_SKIPPED} else self.missing).append(line)
        failed = self.missing or (self.unchecked and not self.allow_unchecked)
        if failed and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.unchecked:
            terminalreporter.section(f"{len(self.unchecked)} live keys could not be checked on this machine", red=True)
            terminalreporter.line(_UNCHECKED_HINT)
        for line in self.unchecked:
            terminalreporter.line(line)
        if self.missing:
            terminalreporter.section("live keys without a passing test", red=True)
        for line in self.missing:
            terminalreporter.line(line)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-live-keys",
        action="store_true",
        help="fail unless every key that docs/keys.md calls live was shown by a test that passed in this run",
    )
    parser.addoption(
        "--allow-unchecked-keys",
        action="store_true",
        help="with --require-live-keys: keys whose tests were all skipped on this machine do not fail the run",
    )
    parser.addoption("--shows", metavar="KEY", help="only the tests that are marked as showing this key")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if key := config.getoption("--shows"):
        others = [item for item in items if key not in keys_of(item)]
        items[:] = [item for item in items if key in keys_of(item)]
        config.hook.pytest_deselected(items=others)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--require-live-keys"):
        plugin = LiveKeys(keys_on_page(KEYS_PAGE), config.getoption("--allow-unchecked-keys"))
        config.pluginmanager.register(plugin, "areal-like-live-keys")
