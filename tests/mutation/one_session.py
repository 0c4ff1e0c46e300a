"""A pytest plugin: every test runs once for each key that it shows, while the product ignores that key.

MUTATED_KEYS lists the keys; MUTATED_OUTCOMES is the output file, one JSON line for each key and test. A key is done
when one of its tests fails. Caches of test modules, such as composed configurations, are cleared before each test;
fixtures of a module or a session stay.
"""

import json
import os
import sys
import time
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from docs.make.key_markers import keys_of
from tests.mutation.ignored_key import VARIABLE

KEYS = tuple(os.environ["MUTATED_KEYS"].split())
OUTCOMES = Path(os.environ["MUTATED_OUTCOMES"])
_caught: set[str] = set()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if set(keys_of(item)) & set(KEYS)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    keys = [key for key in dict.fromkeys(keys_of(item)) if key in KEYS and key not in _caught]
    for number, key in enumerate(keys, start=1):
        _forget()
        os.environ[VARIABLE] = key
        began = time.monotonic()
        item._initrequest()  # type: ignore[attr-defined]
        reports = runtestprotocol(item, log=False, nextitem=nextitem if number == len(keys) else item)
        outcomes = {report.outcome for report in reports}
        outcome = next(each for each in ("failed", "skipped", "passed") if each in outcomes)
        if outcome == "failed":
            _caught.add(key)
        line = {"key": key, "test": item.nodeid, "outcome": outcome, "seconds": round(time.monotonic() - began, 1)}
        with OUTCOMES.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    os.environ.pop(VARIABLE, None)
    return True


def _forget() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("tests."):
            for value in list(vars(module).values()):
                if callable(clear := getattr(value, "cache_clear", None)):
                    clear()
