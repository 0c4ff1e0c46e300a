"""What all tests share: how hard the property tests search.

HYPOTHESIS_PROFILE=ci (the default) tries the same few hundred examples every time; full tries thousands of new ones.
"""

import os

from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester", "tests.live_keys"]

# A busy machine with two cores is slow to generate examples; that says nothing about the code.
settings.register_profile(
    "ci", max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "full", max_examples=8000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
