"""`--require-live-keys` must go red whenever a test that a live key stands on did not pass."""

from collections.abc import Mapping

import pytest

from tests.support.live_keys import LiveKeys

_TESTS = """
    import pytest

    def test_passes(): pass
    @pytest.mark.parametrize("name", ["a", "b"])
    def test_each(name): pass
    @pytest.mark.parametrize("name", ["a", "b"])
    def test_half(name): assert name == "a"
    def test_fails(): assert False
    @pytest.mark.skip(reason="no")
    def test_skipped(): pass
    def test_skips_itself(): pytest.skip("no")
    @pytest.mark.xfail
    def test_expected_to_fail(): assert False
    @pytest.mark.xfail
    def test_passes_unexpectedly(): pass
    @pytest.fixture
    def broken(): raise RuntimeError
    def test_without_setup(broken): pass
    @pytest.fixture
    def breaks_later(): yield; raise RuntimeError
    def test_without_teardown(breaks_later): pass
"""


def run(
    pytester: pytest.Pytester, required: Mapping[str, list[str]], *arguments: str, code: str = _TESTS
) -> pytest.RunResult:
    pytester.makepyfile(test_inner=code)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments, plugins=[LiveKeys(required)])


def select(name: str) -> tuple[str, ...]:
    return ("-k", name, "-o", "addopts=")


def test_passing_tests_keep_their_keys_live(pytester: pytest.Pytester) -> None:
    required = {f"test_inner.py::{test}": ["areal A x"] for test in ("test_passes", "test_each", "test_each[a]")}
    result = run(pytester, required, *select("test_passes or test_each"))
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*live keys*")


@pytest.fixture(autouse=True)
def in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")


@pytest.mark.parametrize(("test", "fate"), [("test_skipped", "was skipped"), ("test_half", "failed in its call")])
def test_one_that_did_not_pass_fails_the_run(pytester: pytest.Pytester, test: str, fate: str) -> None:
    result = run(pytester, {f"test_inner.py::{test}": ["areal A x", "areal B y"]}, *select(test))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*live keys without a passing test*"])
    result.stdout.fnmatch_lines([f"test_inner.py::{test} {fate}; it shows: areal A x, areal B y"])


def test_each_is_named_with_what_became_of_it(pytester: pytest.Pytester) -> None:
    fates = {
        "test_fails": "failed in its call",
        "test_half": "failed in its call",
        "test_skipped": "was skipped",
        "test_skips_itself": "was skipped",
        "test_expected_to_fail": "is marked as expected to fail",
        "test_passes_unexpectedly": "is marked as expected to fail",
        "test_without_setup": "failed in its setup",
        "test_without_teardown": "failed in its teardown",
        "test_gone": "was not collected",
    }
    result = run(pytester, {f"test_inner.py::{test}": [test] for test in ("test_passes", *fates)})
    named = [line for line in result.outlines if "; it shows: " in line]
    assert named == [f"test_inner.py::{test} {fate}; it shows: {test}" for test, fate in fates.items()]


def test_a_deselected_test_fails_the_run(pytester: pytest.Pytester) -> None:
    result = run(pytester, {"test_inner.py::test_passes": ["areal A x"]}, *select("test_each"))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["test_inner.py::test_passes was deselected; it shows: areal A x"])


def test_a_test_that_does_not_exist_fails_the_run(pytester: pytest.Pytester) -> None:
    missing = ["test_inner.py::test_gone", "test_inner.py::test_each[c]", "gone.py::test_passes"]
    result = run(pytester, {test: ["areal B y"] for test in ["test_inner.py::test_each", *missing]}, *select("each"))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    named = [line for line in result.outlines if "; it shows: " in line]
    assert named == [f"{test} was not collected; it shows: areal B y" for test in missing]


def test_an_empty_run_is_not_a_proof(pytester: pytest.Pytester) -> None:
    result = run(pytester, {"test_inner.py::test_passes": ["areal A x"]}, code="")
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_the_option_takes_its_list_from_the_ledger(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_inner="def test_passes(): pass")
    arguments = ("-p", "no:cacheprovider", "-p", "tests.support.live_keys")
    assert pytester.runpytest_inprocess(*arguments).ret == pytest.ExitCode.OK
    result = pytester.runpytest_inprocess(*arguments, "--require-live-keys")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["tests/config/test_key_effects.py::* was not collected; it shows: areal *"])


def test_a_test_of_a_group_of_xdist_counts_under_its_own_name(pytester: pytest.Pytester) -> None:
    code = """
    import pytest
    pytestmark = pytest.mark.xdist_group("one")
    def test_passes(): pass
    @pytest.mark.parametrize("name", ["a@b"])
    def test_each(name): pass
    """
    required = {f"test_inner.py::{test}": ["areal A x"] for test in ("test_passes", "test_each[a@b]")}
    result = run(pytester, required, "--numprocesses", "1", "--dist", "loadgroup", code=code)
    assert result.ret == pytest.ExitCode.OK


def test_elsewhere_a_skip_is_named_and_no_more(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI")
    result = run(pytester, {"test_inner.py::test_skipped": ["areal A x"]}, *select("test_skipped or test_passes"))
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*live keys that this machine cannot show*"])
    result.stdout.fnmatch_lines(["test_inner.py::test_skipped was skipped; it shows: areal A x"])
