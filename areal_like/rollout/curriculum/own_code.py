"""A sampler and gates of the user's own, with what they return checked. A fault in them ends the run."""

import contextlib
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from areal_like.config.problems import ConfigError
from areal_like.data.row_table import TOO_LONG, RowTable
from areal_like.data.user_code import SearchFolders, check_call, config_error, describe_error, load_named, make_object
from areal_like.process.errors import FinalFailure
from areal_like.process.run import Run
from areal_like.process.seeds import derive_seed
from areal_like.rollout.curriculum.base import OpenDraw, RowSampler, StatefulGate
from areal_like.rollout.curriculum.chosen_draw import ChosenDraw
from areal_like.rollout.curriculum.prompts import Prompts
from areal_like.rollout.curriculum.scored_group import ScoredGroup
from areal_like.rollout.curriculum.settings import curriculum_settings

MAX_STATE_BYTES = 2**24
"""Of the JSON of a state."""
OPTIONAL_METHODS = {"observe": ("group",), "metrics": (), "state": (), "resume": ("state",)}
"""With the arguments that each is given."""
OWN_METRIC = "curriculum/own/"

OnFault = Callable[[FinalFailure], None]

log = logging.getLogger(__name__)


class OwnCode:
    """Calls methods of the user's object. A method that raises, or returns what cannot be used, is reported, and has
    no result."""

    def __init__(self, key: str, name: str, thing: Any, on_fault: OnFault) -> None:
        self.name = name
        self._key, self._thing, self._on_fault = key, thing, on_fault

    def call(self, method: str, *given: Any) -> Any:
        try:
            return getattr(self._thing, method)(*given)
        except Exception as fault:
            log.error("%s: the error was:", self._key, exc_info=fault)
            self.refuse(f"{method} of {self.name} failed: {describe_error(fault)}")
            return None

    def refuse(self, message: str) -> None:
        self._on_fault(FinalFailure(f"{self._key}: {message}"))

    def observe(self, group: ScoredGroup) -> None:
        if hasattr(self._thing, "observe"):
            self.call("observe", group)

    def metrics(self) -> dict[str, float]:
        """By the name of the class and that of the metric."""
        found = self.call("metrics") if hasattr(self._thing, "metrics") else None
        if found is None:
            return {}
        if not isinstance(found, Mapping) or not all(_is_metric(*item) for item in found.items()):
            self.refuse(f"metrics of {self.name} returned {found!r:.80}; return a dict of names and finite numbers")
            return {}
        prefix = f"{OWN_METRIC}{self.name.rpartition(':')[2].rpartition('.')[2]}"
        return {f"{prefix}/{name}": float(value) for name, value in found.items()}

    def state(self) -> Any:
        """A copy, as JSON has it."""
        if not hasattr(self._thing, "state"):
            return None
        try:
            text = orjson.dumps(self.call("state"))
        except (TypeError, ValueError) as misfit:
            self.refuse(f"state of {self.name} cannot be saved as JSON: {misfit}")
            return None
        if len(text) > MAX_STATE_BYTES:
            self.refuse(f"state of {self.name} has {len(text)} bytes of JSON, and may have {MAX_STATE_BYTES}")
        return orjson.loads(text)

    def resume(self, state: Any) -> None:
        if hasattr(self._thing, "resume"):
            self.call("resume", state)


def _is_metric(name: Any, value: Any) -> bool:
    return isinstance(name, str) and isinstance(value, int | float) and math.isfinite(value)


class OwnSampler:
    def __init__(self, code: OwnCode, seed: int) -> None:
        self.name = code.name
        self._code, self._seed = code, seed
        self.observe, self.metrics = code.observe, code.metrics

    def begin(self, table: RowTable, prompts: Prompts, size: int, number: int) -> OpenDraw:
        rows = prompts.first_P[table.states[prompts.first_P] != TOO_LONG]
        random = np.random.Generator(np.random.PCG64(derive_seed(self._seed, "draw", number)))
        drawn = self._code.call("draw", rows.copy(), size, random) if len(rows) else []
        return ChosenDraw(self._checked(drawn, rows, size) if len(rows) else rows, table)

    def _checked(self, drawn: Any, rows: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        """The first rows of the data where they cannot be used: the run ends then."""
        chosen = rows[:0]
        if drawn is not None:
            with contextlib.suppress(ValueError):  # lists of different lengths
                chosen = np.array(drawn)
            problem = _misfit(chosen, rows, size)
            if not problem:
                return chosen.astype(np.int64)
            self._code.refuse(f"draw of {self.name} returned {problem}; return from 1 to {size} of the given rows")
        return rows[:size]

    def ended(self, drawn: int, size: int) -> None:
        """The next draw follows."""

    def state(self) -> bytes:
        return orjson.dumps(self._code.state())

    def resume(self, state: bytes, step: int) -> None:
        self._code.resume(orjson.loads(state))


def _misfit(chosen: NDArray[Any], rows: NDArray[np.int64], size: int) -> str:
    if chosen.ndim != 1 or not np.issubdtype(chosen.dtype, np.integer) or not len(chosen):
        return "no list of row numbers"
    if len(chosen) > size:
        return f"{len(chosen)} rows"
    if len(np.unique(chosen)) < len(chosen):
        return "a row twice"
    others = chosen[~np.isin(chosen, rows)]
    return f"row {others[0]}, which was not given" if len(others) else ""


class OwnGate:
    def __init__(self, code: OwnCode) -> None:
        self.name = code.name
        self._code = code
        self.observe, self.metrics, self.state, self.resume = code.observe, code.metrics, code.state, code.resume

    def admits(self, group: ScoredGroup) -> bool:
        admits = self._code.call("admits", group)
        if admits is not None and not isinstance(admits, bool | np.bool_):
            self._code.refuse(f"admits of {self.name} returned {admits!r:.80}; return True or False")
        return bool(admits)


def load_own_curriculum(run: Run, on_fault: OnFault) -> tuple[RowSampler | None, list[StatefulGate]]:
    """Those of `curriculum.sampler` and `curriculum.gates`. Raises ConfigError if one cannot be used."""
    keys, places = run.config.curriculum, SearchFolders(run.folder, run.cwd)
    sampler = None
    if keys.sampler.name is not None:
        seed = curriculum_settings(run.config).seed
        sampler = OwnSampler(_load("sampler", "curriculum.sampler", keys.sampler, places, on_fault), seed)
    gates = [
        OwnGate(_load("gate", f"curriculum.gates.{index}", each, places, on_fault))
        for index, each in enumerate(keys.gates)
    ]
    return sampler, list(gates)


REQUIRED = {"sampler": ("draw", ("rows", "count", "random")), "gate": ("admits", ("group",))}


def _load(kind: str, section: str, named: Any, places: SearchFolders, on_fault: OnFault) -> OwnCode:
    key, name = f"{section}.name", named.name
    try:
        thing = make_object(key, f"{section}.args", name, load_named(kind, key, name, places), dict(named.args))
        method, given = REQUIRED[kind]
        if not hasattr(thing, method):
            raise config_error(key, f"{name} has no method {method}({', '.join(given)})")
        check_call(key, name, thing, method, *given)
        for method, given in OPTIONAL_METHODS.items():
            if hasattr(thing, method):
                check_call(key, name, thing, method, *given)
        if hasattr(thing, "state") != hasattr(thing, "resume"):
            raise config_error(key, f"{name} needs both state() and resume(state), or neither")
    except ConfigError as error:
        if error.__cause__ is not None:
            log.error("the configuration cannot be used; the error was:", exc_info=error.__cause__)
        raise
    return OwnCode(key, name, thing, on_fault)
