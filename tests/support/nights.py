"""Parameters of tests that `make night` alone runs, as they show no more than the others."""

from typing import Any

import pytest


def at_night(*values: Any) -> list[Any]:
    return [pytest.param(value, marks=[pytest.mark.slow, pytest.mark.night]) for value in values]
