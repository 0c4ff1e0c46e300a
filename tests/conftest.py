"""What all tests share: how hard the property tests search.

HYPOTHESIS_PROFILE=ci (the default) tries the same few hundred examples every time; full tries thousands of new ones.
"""

import os
import shutil
import signal
import sys

from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester", "tests.live_keys"]

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would the runs that they press it in.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine with two cores is slow to generate examples; that says nothing about the code.
settings.register_profile(
    "ci", max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "full", max_examples=8000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_sessionfinish() -> None:
    if training_runs := sys.modules.get("tests.training_runs"):
        for memory in training_runs.MEMORY:
            shutil.rmtree(memory, ignore_errors=True)
