"""Suggests a key for an unknown one: by the tables of synonyms, and by spelling."""

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

from areal_like.config.engines import engine_names
from areal_like.config.names import ALIASES, LOCAL_SYNONYMS, synonyms

SECTION_CUTOFF = 0.75
GLOBAL_CUTOFF = 0.86
"""Minimum similarity of two names, in the same section and in different ones."""

SHORTEST_START = 3
"""Letters of a name by which those that begin with it are suggested, whatever follows."""

APART = ("critic", "evaluator", "ref", "valid_dataset")
"""Sections similar to another one: no suggestions outside of them, except by synonyms."""
HIDDEN = ("ref", "evaluator.gconfig", "evaluator.save")
"""No suggestions in these for keys written elsewhere."""
TWINS = {"critic": "actor", "model": "actor", "valid_dataset": "train_dataset"}
"""Section -> the preferred one for a key that both have."""
TRAINED = {"model": "actor", "actor": "model"}
"""The section of the trained model -> its name in other kinds of experiment."""
GENERIC = {"args", "config", "enable", "freq", "group", "host", "id", "interval", "level", "mode", "model", "name"}
GENERIC |= {"path", "port", "seed", "size", "strategy", "type"}
"""Names that are ambiguous without their section."""


def nearest(name: str, candidates: Sequence[str], cutoff: float = 0.6) -> list[str]:
    """Candidates with similar spelling, best first; before them those that begin with the name."""
    start = name.lower().replace("-", "_")
    begun = {c for c in candidates if len(start) >= SHORTEST_START and c.lower().startswith(start)}
    scored = sorted((c not in begun, -similarity(name, c), c) for c in candidates)
    return [candidate for _, score, candidate in scored[:3] if candidate in begun or -score >= cutoff]


def similarity(left: str, right: str, cutoff: float = 0.4) -> float:
    """From 0 to 1; 0 if a fast bound is below the cutoff."""
    matcher = SequenceMatcher(None, left.lower().replace("-", "_"), right.lower())
    return matcher.ratio() if matcher.real_quick_ratio() > cutoff and matcher.quick_ratio() > cutoff else 0.0


def suggest(path: str, names: Iterable[str]) -> str | None:
    """The key or section of `names` that `path` most likely means, or None."""
    return None if "[" in path else _Names(names).suggest(path.lower().replace("-", "_"))


def did_you_mean(path: str, names: Iterable[str]) -> str:
    """`; did you mean actor.optimizer.lr (short: actor.lr)?`, or nothing."""
    suggestion = suggest(path, names)
    if suggestion is None:
        return ""
    short = next((alias for alias, real in ALIASES.items() if real == suggestion), None)
    return f"; did you mean {suggestion}" + (f" (short: {short})" if short else "") + "?"


class _Names:
    """The keys and sections of one experiment."""

    def __init__(self, names: Iterable[str]) -> None:
        self.known = dict.fromkeys(name for name in names if "[" not in name)
        self.inside: dict[str, dict[str, str]] = {"": {}}
        """Section -> name in it, also a short one -> path."""
        for name in self.known:
            above, _, leaf = name.rpartition(".")
            self.inside.setdefault(above, {})[leaf.lower()] = name
        for alias, path in ALIASES.items():
            above, _, leaf = alias.rpartition(".")
            if path in self.known and above in self.inside:
                self.inside[above].setdefault(leaf, path)

    def suggest(self, path: str) -> str | None:
        top, _, rest = path.partition(".")
        if top in self.inside:
            return self._in_section(path) or self._by_synonym(path) or self._elsewhere(path)
        other = self._section_of_another_kind(top)
        twin = TRAINED.get(other or "")
        if other == top and twin not in self.inside:
            return None
        found = self._by_synonym(path, 1 + bool(rest)) or self._ending(path) or self._in_section(path)
        if found:
            return found
        if twin in self.inside:
            return self.suggest(f"{twin}.{rest}") if rest else twin
        if other or not rest:
            return other or self._elsewhere(path)
        if rest in self.known:
            return rest if "." in rest or rest not in self.inside else None
        return self.suggest(rest)

    def _in_section(self, path: str) -> str | None:
        """In its section, once the names of the sections above are corrected."""
        *sections, leaf = path.split(".")
        above = ""
        for name in sections:
            inner = [below for below, path in self.inside[above].items() if path in self.inside]
            found = name if name in inner else _alike(name, inner, SECTION_CUTOFF)
            if found is None:
                return None
            above = self.inside[above][found]
        there = self.inside[above]
        meant = f"{above}.{LOCAL_SYNONYMS.get(leaf)}".lstrip(".")
        if leaf not in there and meant in self.known:
            return meant
        found = leaf if leaf in there else _alike(leaf, there, SECTION_CUTOFF)
        return None if found is None else there[found]

    def _by_synonym(self, path: str, least: int = 1) -> str | None:
        """By the longest end of the path, of at least so many names, that is a synonym."""
        targets, parts = synonyms(), path.split(".")
        top, long = parts[0], [name for name in targets if "." not in name and len(name) > 5]
        for start in range(len(parts) - least + 1):
            end = ".".join(parts[start:])
            if end not in targets and "." not in end and len(end) > 5:
                end = _alike(end, long, 0.88) or end
            if end not in targets:
                continue
            section, _, below = targets[end].partition(".")
            places = [f"{top}.{below}"] if below and top in self.inside else []
            if "." in end or top not in APART:
                places += [targets[end], f"{TRAINED.get(section)}.{below}"]
            for place in places:
                of_evaluation = not place.startswith(HIDDEN[1:]) or {"eval", "evaluator"} & {*parts}
                if place in self.known and place != path and of_evaluation:
                    return place
        return None

    def _ending(self, path: str) -> str | None:
        return self._only([name for name in self.known if name.lower().endswith(f".{path}")]) if "." in path else None

    def _elsewhere(self, path: str) -> str | None:
        """By the name of the key alone: in its top section, then in all sections."""
        top, leaf = path.partition(".")[0], path.rpartition(".")[2]
        leaves = {name.rpartition(".")[2] for name in self.known if name not in self.inside or "." in name}
        found = leaf if leaf in leaves else _alike(leaf, leaves, GLOBAL_CUTOFF) if len(leaf) > 3 else None
        if found is None or found in GENERIC or len(leaf) < 2:
            return None
        named = [name for name in self.known if name.rpartition(".")[2] == found]
        inside = [name for name in named if name.startswith(f"{top}.")]
        if inside or top in APART:
            return self._only(inside, path)
        if top in engine_names():  # no suggestions from one engine for another, except by synonyms
            named = [name for name in named if name.partition(".")[0] not in engine_names()]
        return self._only(named)

    def _only(self, names: Sequence[str], path: str = "") -> str | None:
        """The only name without hidden ones and twins."""
        hidden = tuple(f"{section}." for section in HIDDEN if not path.startswith(f"{section}."))
        left = [name for name in names if not name.startswith(hidden)]
        section = (name.partition(".") for name in left)
        twins = [f"{TWINS.get(above, '')}.{below}" for above, _, below in section]
        left = [name for name, twin in zip(left, twins, strict=True) if twin not in left]
        return left[0] if len(left) == 1 else None

    def _section_of_another_kind(self, name: str) -> str | None:
        """The most similar section that only other kinds of experiment have."""
        from areal_like.config.experiment import EXPERIMENTS
        from areal_like.config.schema import declarations

        classes: list[type] = [*EXPERIMENTS.values()]
        declared = [item for cls in classes for item in declarations(cls).items()]
        others = {section for section, (kind, _) in declared if kind.name == "section"} - self.inside.keys()
        return _alike(name, others, 0.8)


def _alike(name: str, candidates: Iterable[str], cutoff: float) -> str | None:
    """The candidate most similar to `name`; None if two are equally similar."""
    scored = sorted(((similarity(name, each, cutoff - 0.01), each) for each in candidates), reverse=True)
    found = [each for score, each in scored[:2] if score >= cutoff]
    return found[0] if len(found) == 1 or (found and scored[0][0] > scored[1][0]) else None
