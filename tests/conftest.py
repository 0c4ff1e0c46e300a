"""Settings of all tests: profiles of the property tests.

HYPOTHESIS_PROFILE=ci (the default) tries the same hundred examples every time; full tries thousands of new ones,
night tens of thousands.
"""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from areal_like.process.run_memory import SHARED_MEMORY
from tests.support.engine_environments import contract_engines, require_engine

if TYPE_CHECKING:
    from tests.support.engines import LiveServer
    from tests.support.sglang_servers import SGLangAlone

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


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """An empty folder in shared memory."""
    if not SHARED_MEMORY.is_dir():
        pytest.skip(f"this machine has no {SHARED_MEMORY}")
    with tempfile.TemporaryDirectory(prefix="areal-like-test-", dir=SHARED_MEMORY) as name:
        yield Path(name)


@pytest.fixture(scope="session", params=contract_engines())
def one_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator["LiveServer"]:
    """A real server of each engine, which lives through all tests of it."""
    from tests.support.engines import SHARED, started

    engine = request.param
    require_engine(engine)
    with started(engine, tmp_path_factory.mktemp(engine), *SHARED.get(engine, ())) as server:
        yield server


@pytest.fixture
def server(one_server: "LiveServer") -> "LiveServer":
    """The same, and in order."""
    from tests.support.server_session import healthy

    return healthy(one_server)


@pytest.fixture
def sglang(server: "LiveServer", tmp_path: Path) -> "SGLangAlone":
    """The SGLang of the server, asked without it, with the weights of `reference(0)`."""
    from tests.support.sglang_servers import SGLangAlone, bring, published

    alone = SGLangAlone(server)
    alone.ask(lambda engine: bring(engine, published(tmp_path, 0)))
    return alone


def pytest_sessionfinish() -> None:
    if training_runs := sys.modules.get("tests.support.training_runs"):
        for memory in training_runs.MEMORY:
            shutil.rmtree(memory, ignore_errors=True)
