"""Settings of all tests: profiles of the property tests.

HYPOTHESIS_PROFILE=ci (the default) tries the same hundred examples every time; full tries thousands of new ones,
night tens of thousands.
"""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support.engine_environments import contract_engines, require_engine

if TYPE_CHECKING:
    from tests.support.engines import LiveServer
    from tests.support.sglang_servers import Server

pytest_plugins = ["pytester", "tests.support.live_keys"]

# A shell that starts the tests in the background has them ignore Ctrl-C (nohup: the end of the terminal), and so would
# the runs that tests do this to.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, usual)

# A busy machine with two cores is slow to generate examples; that says nothing about the code.
settings.register_profile(
    "ci", max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "full", max_examples=4000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "night", max_examples=20_000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session", params=contract_engines())
def one_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator["LiveServer"]:
    """A real server of each engine, which lives through all tests of it."""
    from tests.support.engines import started

    require_engine(request.param)
    with started(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


@pytest.fixture
def server(one_server: "LiveServer") -> "LiveServer":
    """The same, and in order."""
    from tests.support.server_session import healthy

    return healthy(one_server)


@pytest.fixture(scope="session")
def own_sglang(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Server"]:
    """A real SGLang by itself, with nothing of a run around it."""
    from tests.support.sglang_servers import tiny_sglang

    with tiny_sglang(tmp_path_factory.mktemp("sglang")) as server:
        yield server


@pytest.fixture
def sglang(own_sglang: "Server", tmp_path_factory: pytest.TempPathFactory) -> "Server":
    """The same, with the weights that it was started with."""
    from tests.support.sglang_servers import bring, published

    first = published(tmp_path_factory.mktemp("weights"), 0)
    own_sglang.ask(lambda engine: bring(engine, first))
    return own_sglang


def pytest_sessionfinish() -> None:
    if training_runs := sys.modules.get("tests.support.training_runs"):
        for memory in training_runs.MEMORY:
            shutil.rmtree(memory, ignore_errors=True)
