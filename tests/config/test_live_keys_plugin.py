"""`--require-live-keys` fails unless a passing test shows each live key."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from docs.make.key_ledger import required
from tests.support.live_keys import KEYS_PAGE, LiveKeys, keys_on_page

_TESTS = """
    import pytest
    shows = pytest.mark.shows

    @shows("a.passes")
    def test_passes(): pass
    @shows("a.{name}")
    @pytest.mark.parametrize("name", ["one", "two"])
    def test_each(name): pass
    @shows("a.half_{name}")
    @pytest.mark.parametrize("name", ["a", "b"])
    def test_half(name): assert name == "a"
    @shows("a.fails")
    def test_fails(): assert False
    @shows("a.skipped")
    @pytest.mark.skip(reason="no")
    def test_skipped(): pass
    @shows("a.skips_itself", "a.passes")
    def test_skips_itself(): pytest.skip("no")
    @shows("a.expected")
    @pytest.mark.xfail
    def test_expected_to_fail(): assert False
    @shows("a.unexpected")
    @pytest.mark.xfail
    def test_passes_unexpectedly(): pass
    @pytest.fixture
    def broken(): raise RuntimeError
    @shows("a.setup")
    def test_without_setup(broken): pass
    @pytest.fixture
    def breaks_later(): yield; raise RuntimeError
    @shows("a.teardown")
    def test_without_teardown(breaks_later): pass
    @pytest.mark.shows_no_effect("b.nothing")
    def test_nothing(): pass
"""
_MARKERS = ("-o", "markers=shows\nshows_no_effect", "-o", "addopts=")


def run(
    pytester: pytest.Pytester, keys: Iterable[str], *arguments: str, code: str = _TESTS, allow: bool = False
) -> pytest.RunResult:
    pytester.makepyfile(test_inner=code)
    plugin = LiveKeys({key: (f"test_inner.py::test_{key}",) for key in keys}, allow)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *_MARKERS, *arguments, plugins=[plugin])


def named(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if line.startswith(("a.", "b."))]


def test_passing_tests_keep_their_keys_live(pytester: pytest.Pytester) -> None:
    result = run(pytester, ["a.passes", "a.one", "a.two", "b.nothing"], "-k", "test_passes or each or nothing")
    assert named(result) == []
    result.stdout.no_fnmatch_line("*live keys*")
    result = run(pytester, ["a.passes", "a.one"], "-k", "each or skips_itself or (passes and not unexpectedly)")
    assert result.ret == pytest.ExitCode.OK


def test_each_key_is_named_with_the_result_of_its_tests(pytester: pytest.Pytester) -> None:
    results_by_test = {
        "a.half_b": "test_half[b] failed in its call",
        "a.fails": "test_fails failed in its call",
        "a.expected": "test_expected_to_fail is marked as expected to fail",
        "a.unexpected": "test_passes_unexpectedly is marked as expected to fail",
        "a.setup": "test_without_setup failed in its setup",
        "a.teardown": "test_without_teardown failed in its teardown",
    }
    result = run(pytester, ["a.passes", "a.half_a", *results_by_test])
    assert named(result) == [f"{key}: test_inner.py::{fate}" for key, fate in results_by_test.items()]
    result.stdout.fnmatch_lines(["*live keys without a passing test*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_key_without_a_test_in_the_run_fails_it(pytester: pytest.Pytester) -> None:
    result = run(pytester, ["a.passes", "a.one", "a.gone"], "-k", "each")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    lost = [f"{key}: no test in this run (test_inner.py::test_{key})" for key in ("a.passes", "a.gone")]
    assert named(result) == lost


def test_an_empty_run_fails(pytester: pytest.Pytester) -> None:
    assert run(pytester, ["a.passes"], code="").ret == pytest.ExitCode.TESTS_FAILED


def test_skipped_keys_are_listed_apart_and_fail_unless_allowed(pytester: pytest.Pytester) -> None:
    keys, select = ["a.skipped", "a.skips_itself", "a.one"], ("-k", "skip or each")
    result = run(pytester, keys, *select)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*2 live keys could not be checked on this machine*", "*make vllm-cpu*"])
    assert named(result) == [
        "a.skipped: test_inner.py::test_skipped was skipped",
        "a.skips_itself: test_inner.py::test_skips_itself was skipped",
    ]
    allowed = run(pytester, keys, *select, allow=True)
    assert allowed.ret == pytest.ExitCode.OK and named(allowed) == named(result)
    assert run(pytester, [*keys, "a.gone"], *select, allow=True).ret == pytest.ExitCode.TESTS_FAILED


def test_the_option_reads_its_keys_from_the_page(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_inner="def test_passes(): pass")
    arguments = ("-p", "no:cacheprovider", "-p", "tests.support.live_keys")
    assert pytester.runpytest_inprocess(*arguments).ret == pytest.ExitCode.OK
    result = pytester.runpytest_inprocess(*arguments, "--require-live-keys")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["actor.eps_clip: no test in this run (tests/*::test_*)"])


def test_the_page_names_every_key_of_the_ledger_that_a_test_shows() -> None:
    assert set(keys_on_page(KEYS_PAGE)) == set(required())


def test_a_page_without_rows_requires_nothing(tmp_path: Path) -> None:
    page = tmp_path / "keys.md"
    page.write_text(
        "| key | place | state | test or reason |\n| `x` | `a.x` | pending |  |\n| `y` | `a.y` |  | *section* |\n"
    )
    assert keys_on_page(page) == {}


def test_workers_and_groups_of_xdist_report_their_keys(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        from tests.support.live_keys import LiveKeys
        def pytest_configure(config):
            config.pluginmanager.register(LiveKeys({"a.passes": (), "a.a@b": (), "a.gone": ()}), "keys under test")
        """
    )
    code = """
    import pytest
    pytestmark = pytest.mark.xdist_group("one")
    @pytest.mark.shows("a.passes")
    def test_passes(): pass
    @pytest.mark.shows("a.{name}")
    @pytest.mark.parametrize("name", ["a@b"])
    def test_each(name): pass
    """
    pytester.makepyfile(test_inner=code)
    arguments = ("-p", "no:cacheprovider", *_MARKERS, "--numprocesses", "1", "--dist", "loadgroup")
    assert named(pytester.runpytest_inprocess(*arguments)) == ["a.gone: no test in this run (none is marked)"]
