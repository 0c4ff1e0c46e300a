"""The points of a sweep: parses Hydra's sweep syntax before the sweeper does, so that all points can be checked.

For a sweeper that chooses its points while it runs, the corners of its ranges are checked instead.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException

from areal_like.config.problems import ConfigError, Problem


@dataclass(frozen=True)
class SweptKey:
    """A swept key as Hydra names it, its values as text, and the override for the sweeper."""

    key: str
    values: tuple[str, ...]
    argument: str


@dataclass(frozen=True)
class SweepPoints:
    """The product of the swept keys, the last one varying fastest, as Hydra numbers its jobs. `parts`: the overrides in
    their order, a SweptKey where one is swept."""

    parts: tuple[str | SweptKey, ...]
    optimizing: bool = False

    @property
    def swept_keys(self) -> list[SweptKey]:
        return [part for part in self.parts if isinstance(part, SweptKey)]

    def __len__(self) -> int:
        return math.prod(len(swept_key.values) for swept_key in self.swept_keys)

    def values(self, number: int) -> dict[str, str]:
        """The values of the swept keys at point `number`."""
        chosen = {}
        for swept_key in reversed(self.swept_keys):
            number, index = divmod(number, len(swept_key.values))
            chosen[swept_key.key] = swept_key.values[index]
        return {swept_key.key: chosen[swept_key.key] for swept_key in self.swept_keys}

    def overrides(self, values: Mapping[str, str]) -> list[str]:
        """All overrides of the point with these values, in the user's order; keys added by the sweeper come last."""
        left = dict(values)
        texts = []
        for part in self.parts:
            if isinstance(part, str):
                texts.append(part)
            elif part.key in left:
                texts.append(f"{part.key}={left.pop(part.key)}")
        return texts + [f"{key}={value}" for key, value in left.items()]

    def sample(self, bound: int) -> list[int]:
        """Up to `bound` points to check, which contain every single value first."""
        if len(self) <= bound:
            return list(range(len(self)))
        singles, stride = [0], 1
        for swept_key in reversed(self.swept_keys):
            singles += [index * stride for index in range(1, len(swept_key.values))]
            stride *= len(swept_key.values)
        rest = (number for number in range(len(self)) if number not in set(singles))
        return sorted(itertools.islice(itertools.chain(singles, rest), bound))


MOST_POINTS = 10_000


def expand(
    overrides: Sequence[str],
    *,
    loader: ConfigLoader,
    params: Mapping[str, Any] | None = None,
    optimizing: bool = False,
    aliases: Mapping[str, str] | None = None,
    is_secret: Callable[[str], bool] = lambda _key: False,
) -> SweepPoints:
    """The points of these overrides and of the sweeper's `params`; overrides win."""
    reader = _Reader(OverridesParser.create(config_loader=loader), optimizing, aliases or {}, is_secret)
    given: set[str] = set()
    parts: list[str | SweptKey] = []
    swept: set[str] = set()
    for text in overrides:
        part, name = reader.read(text)
        if name in swept or (name in given and isinstance(part, SweptKey)):
            reader.problems.append(Problem(name, "given twice, and swept; keep one", f"override {text}"))
        given.add(name)
        swept |= {name} if isinstance(part, SweptKey) else set()
        parts.append(part)
    own: list[str | SweptKey] = []
    for key, value in (params or {}).items():
        part, name = reader.read(f"{key}={'null' if value is None else value}", "hydra.sweeper.params")
        if name not in given:
            own.append(part)
    if reader.problems:
        raise ConfigError(reader.problems)
    points = SweepPoints((*own, *parts), optimizing)
    if not optimizing and len(points) > MOST_POINTS:
        raise ConfigError([Problem("--multirun", f"has {len(points)} points; at most {MOST_POINTS} are allowed")])
    return points


@dataclass
class _Reader:
    parser: OverridesParser
    optimizing: bool
    aliases: Mapping[str, str]
    is_secret: Callable[[str], bool]
    problems: list[Problem] = field(default_factory=list)

    def read(self, text: str, where: str = "") -> tuple[str | SweptKey, str]:
        """The override, or its SweptKey if it is swept; and the full name of its key."""
        where = where or f"override {text}"
        try:
            [override] = self.parser.parse_overrides([text])
        except HydraException as error:
            key = text.partition("=")[0]
            self.problems.append(Problem(key, first_line(error), where))
            return text, key
        key = override.key_or_group
        name = self.aliases.get(key, key) + (f"@{override.package}" if override.package else "")
        if not override.is_sweep_override():
            return text, name
        if self.is_secret(name):
            message = "a secret cannot be swept: its values would be written to the sweep's records"
            self.problems.append(Problem(key, message, f"override {key}=<secret>"))
            return text, name
        try:
            return _swept_key(override, self.optimizing), name
        except (ValueError, HydraException) as error:
            self.problems.append(Problem(key, first_line(error), where))
            return text, name


def _swept_key(override: Override, optimizing: bool) -> SweptKey:
    key, value = override.get_key_element(), override.value()
    if override.is_delete():
        raise ValueError("a key cannot be deleted by a sweep; sweep over values, null among them")
    if override.key_or_group == "trial_name":
        raise ValueError("a sweep names its runs itself, <trial>-<number>; give one name")
    if isinstance(value, IntervalSweep):
        if not optimizing:
            raise ValueError(
                "an interval needs a sweeper that chooses points (hydra/sweeper=optuna); the basic one takes lists, "
                "choice(...), range(...) and glob(...)"
            )
        if value.start is None or value.end is None or value.start > value.end:
            raise ValueError(f"the interval starts at {value.start}, above its end {value.end}")
        return SweptKey(key, _texts([value.start, value.end]), f"{key}={override.get_value_string()}")
    texts = tuple(itertools.islice(override.sweep_string_iterator(), MOST_POINTS + 1))
    if len(texts) > MOST_POINTS:
        raise ValueError(f"has more than {MOST_POINTS} values; use fewer")
    if not texts:
        raise ValueError(_empty_sweep_text(override))
    if isinstance(value, Glob) or getattr(value, "shuffle", False):
        # A glob needs the groups, and every shuffle differs: the sweeper gets the values that were parsed here.
        return SweptKey(key, texts, f"{key}=choice({','.join(texts)})")
    if optimizing and isinstance(value, RangeSweep):
        texts = _texts(_ends(value))
    return SweptKey(key, texts, f"{key}={override.get_value_string()}")


def _ends(sweep: RangeSweep) -> list[float]:
    """Both ends of a range; for an optimizing sweeper the stop is included where the steps reach it."""
    assert sweep.start is not None and sweep.stop is not None
    steps = math.floor((sweep.stop - sweep.start) / sweep.step + 1e-9)
    return [sweep.start, sweep.start + steps * sweep.step]


def _texts(values: Iterable[float]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(value) for value in values))


def _empty_sweep_text(override: Override) -> str:
    if not isinstance(override.value(), Glob):
        return "the sweep has no values"
    options = override.config_loader.get_group_options(override.key_or_group) if override.config_loader else []
    known = f"it has {', '.join(options)}" if options else "it is not a config group"
    return f"no option of {override.key_or_group} matches {override.get_value_string()}; {known}"


def first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
