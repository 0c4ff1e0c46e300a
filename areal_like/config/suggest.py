"""Suggests a key for an unknown one: by spelling, by section, and by synonyms."""

from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher

from areal_like.config.engines import engine_names
from areal_like.config.names import ALIASES, LOCAL_SYNONYMS, synonyms

SECTION_CUTOFF = 0.75
GLOBAL_CUTOFF = 0.86
"""Minimum similarity of two names, in the same section and in different ones."""

APART = ("critic", "evaluator", "ref", "valid_dataset")
"""Sections similar to another one: no suggestions outside of them, except by synonyms."""
HIDDEN = ("ref", "evaluator.benchmarks")
"""No suggestions in these for keys written elsewhere."""
TWINS = {"critic": "actor", "model": "actor", "valid_dataset": "train_dataset"}
"""Section -> the preferred one for a key that both have."""
GENERIC = {"args", "config", "enable", "freq", "group", "host", "id", "interval", "level", "mode", "model", "name"}
GENERIC |= {"path", "port", "seed", "size", "strategy", "type"}
"""Names that are ambiguous without their section."""


def nearest(name: str, candidates: Sequence[str], cutoff: float = 0.6) -> list[str]:
    """Candidates with similar spelling, best first."""
    scored = sorted(((similarity(name, c), c) for c in candidates), key=lambda pair: (-pair[0], pair[1]))
    return [candidate for score, candidate in scored[:3] if score >= cutoff]


def similarity(left: str, right: str, cutoff: float = 0.4) -> float:
    """From 0 to 1; 0 if a fast bound is below the cutoff."""
    matcher = SequenceMatcher(None, left.lower().replace("-", "_"), right.lower())
    return matcher.ratio() if matcher.real_quick_ratio() > cutoff and matcher.quick_ratio() > cutoff else 0.0


def suggest(path: str, names: Iterable[str]) -> str | None:
    """The key or section of `names` that `path` most likely means, or None."""
    if "[" in path:
        return None
    return _Tree(names).suggest(path.lower().replace("-", "_"))


def did_you_mean(path: str, names: Iterable[str]) -> str:
    """`; did you mean actor.optimizer.lr (short: actor.lr)?`, or nothing."""
    suggestion = suggest(path, names)
    if suggestion is None:
        return ""
    short = next((alias for alias, real in ALIASES.items() if real == suggestion), None)
    return f"; did you mean {suggestion}" + (f" (short: {short})" if short else "") + "?"


class _Tree:
    """All names by section; `short` has the short names by section."""

    def __init__(self, names: Iterable[str]) -> None:
        self.known = dict.fromkeys(name for name in names if "[" not in name)
        self.below: dict[str, list[str]] = {"": []}
        self.plain: dict[str, str] = {}
        self.short: dict[str, dict[str, str]] = {}
        for alias, real in ALIASES.items():
            above, _, leaf = alias.rpartition(".")
            if real in self.known:
                self.short.setdefault(above, {})[leaf] = real
        for name in self.known:
            above, _, leaf = name.rpartition(".")
            self.below.setdefault(above, []).append(leaf)
            self.plain[name.lower()] = name

    def suggest(self, path: str) -> str | None:
        top, _, rest = path.partition(".")
        if top in self.below:
            return self._in_sections(path)
        other = self._of_another_kind(top)
        twin = {"actor": "model", "model": "actor"}.get(other or "")
        if other == top and twin not in self.below:
            return None
        if not rest and (suggestion := self._synonym(path)):
            return suggestion
        if (suggestion := self._suffix(path)) or (suggestion := self._synonym(path, least=2)):
            return suggestion
        if suggestion := self._in_sections(path):
            return suggestion
        if other:
            if twin not in self.below:
                return other
            return self.suggest(f"{twin}.{rest}") if rest else twin
        return self._outside(rest or path)

    def _outside(self, path: str) -> str | None:
        """A key below sections of another framework: drops the sections one by one."""
        while path:
            if path in self.known and path not in self.below:
                return path
            top, _, rest = path.partition(".")
            suggestion = self._synonym(path) or self._suffix(path)
            if not suggestion and rest and top in self.below:
                suggestion = self._in_sections(path)
            if suggestion:
                return suggestion
            if not rest:
                return self._elsewhere("", path)
            path = rest
        return None

    def _in_sections(self, path: str) -> str | None:
        """Resolves the (possibly misspelt) sections, then the key: there, deeper, or elsewhere."""
        *sections, leaf = path.split(".")
        above = ""
        for name in sections:
            inner = [n for n in self.below[above] if _join(above, n) in self.below]
            section = name if name in inner else _match(name, inner, at_top=not above)
            if section is None:
                return self._near(above, leaf, path) if above else None
            above = _join(above, section)
        right = _join(above, leaf)
        if right in self.plain:
            return self.plain[right]
        if ALIASES.get(right) in self.known:
            return ALIASES[right]
        return self._near(above, leaf, path)

    def _near(self, above: str, leaf: str, path: str) -> str | None:
        """A key of one section, or deeper, or elsewhere."""
        in_place = above == path.rpartition(".")[0] or path.count(".") == above.count(".") + 1
        if in_place and (match := _match(leaf, self.below[above], at_top=not above)):
            return _join(above, match)
        if in_place and (short := _alike(leaf, self.short.get(above, {}), SECTION_CUTOFF)):
            return self.short[above][short[0]]
        if not above:
            return self._elsewhere(above, leaf)
        return self._synonym(path) or self._elsewhere(above, leaf)

    def _synonym(self, path: str, least: int = 1) -> str | None:
        """By the longest suffix of the path that is a synonym, with at least `least` names."""
        targets, parts = synonyms(), path.split(".")
        for start in range(len(parts) - least + 1):
            end = ".".join(parts[start:])
            spelt = [end] if end in targets else []
            if not spelt and start == len(parts) - 1 and len(end) > 5:
                spelt = _alike(end, [name for name in targets if "." not in name and len(name) > 5], 0.88)
            for name in spelt:
                for place in self._places(path, targets[name], exact="." in name):
                    if place in self.known and place != path:
                        return place
                if "." in name:
                    return None
        return None

    def _places(self, path: str, target: str, exact: bool) -> Iterator[str]:
        """Candidate paths of a synonym's key: in the section where it was written, then its own."""
        top, _, below = target.partition(".")
        written = path.partition(".")[0]
        if written in self.below and written != top and below:
            yield f"{written}.{below}"
        if not exact and written in APART and written in self.below:
            return
        if _is_in(target, "evaluator.benchmarks") and written not in ("eval", "evaluator"):
            return
        yield target
        if top == "actor":
            yield f"model{target.removeprefix('actor')}"

    def _suffix(self, path: str) -> str | None:
        """The only path with this suffix, such as `mb_spec.n_mbs`."""
        if "." not in path:
            return None
        return self._only(name for name in self.known if name.lower().endswith(f".{path}"))

    def _elsewhere(self, above: str, leaf: str) -> str | None:
        """By the name alone: deeper in the section, then in its top section, then in all sections except APART."""
        if leaf in GENERIC or len(leaf) < 2:
            return None
        leaves = list(dict.fromkeys(name.rpartition(".")[2] for name in self.known))
        spelt = [leaf] if leaf in leaves else _alike(leaf, leaves, GLOBAL_CUTOFF) if len(leaf) > 3 else []
        if not spelt or spelt[0] in GENERIC:
            return None
        named = [n for n in self.known if n.rpartition(".")[2] == spelt[0] and (n not in self.below or "." in n)]
        top = above.partition(".")[0]
        for place in filter(None, (above, top)):
            inside = [name for name in named if _is_in(name, place)]
            if inside:
                return self._only(inside, above)
        if top in engine_names():  # no suggestions from one engine for another, except by synonyms
            named = [name for name in named if name.partition(".")[0] not in engine_names()]
        return None if top in APART else self._only(named, above)

    def _only(self, names: Iterable[str], above: str = "") -> str | None:
        """The only remaining name without hidden ones and twins."""
        left = [name for name in names if not any(_is_in(name, h) and not _is_in(above, h) for h in HIDDEN)]
        left = [name for name in left if self._twin(name) not in left]
        return left[0] if len(left) == 1 else None

    def _twin(self, name: str) -> str:
        top, _, below = name.partition(".")
        return f"{TWINS.get(top, '')}.{below}"

    def _of_another_kind(self, name: str) -> str | None:
        """The most similar section that only other kinds of experiment have."""
        from areal_like.config.experiment import EXPERIMENTS
        from areal_like.config.schema import declarations

        classes: list[type] = [*EXPERIMENTS.values()]
        declared = [item for cls in classes for item in declarations(cls).items()]
        others = {section for section, (kind, _) in declared if kind.name == "section"}
        alike = _alike(name, sorted(others - self.below.keys()), 0.8)
        return alike[0] if alike else None


def _match(name: str, there: Sequence[str], at_top: bool) -> str | None:
    """The key of a section that `name` means: a synonym, the same words in another order, some of the words or their
    prefixes (`max_len` is `max_model_len`), or a similar spelling."""
    if LOCAL_SYNONYMS.get(name) in there:
        return LOCAL_SYNONYMS[name]
    words = sorted(name.split("_"))
    same = [other for other in there if sorted(other.split("_")) == words]
    if len(same) == 1:
        return same[0]
    if len(name) > 2:
        short = sorted((o for o in there if _abbreviates(name, o, long_too=not at_top)), key=lambda o: (len(o), o))
        last = [other for other in short if other.rpartition("_")[2].startswith(name.rpartition("_")[2])]
        for candidates in (short, last):
            if candidates and all(other.startswith(candidates[0]) for other in candidates):
                return candidates[0]
    spelt = _alike(name, there, SECTION_CUTOFF)
    return spelt[0] if spelt else None


def _abbreviates(name: str, other: str, long_too: bool) -> bool:
    """Whether each word of `name` is a prefix of a word of `other`, in order, beginning with the first; `long_too`: or
    the reverse (`epsilon`, `eps`)."""
    words, place = other.split("_"), 0
    for number, word in enumerate(name.split("_")):
        while place < len(words):
            begins = words[place].startswith(word) or (
                long_too and len(words[place]) > 2 and word.startswith(words[place])
            )
            place += 1
            if begins:
                break
            if number == 0:
                return False
        else:
            return False
    return True


def _alike(name: str, candidates: Iterable[str], cutoff: float) -> list[str]:
    """The candidate most similar to `name`; none if two are equally similar."""
    scored = sorted(((similarity(name, c, cutoff - 0.01), c) for c in candidates), reverse=True)
    scored = [(score, candidate) for score, candidate in scored if score >= cutoff]
    clear = len(scored) == 1 or (len(scored) > 1 and scored[0][0] > scored[1][0])
    return [scored[0][1]] if clear else []


def _is_in(name: str, section: str) -> bool:
    return name == section or name.startswith(f"{section}.")


def _join(above: str, name: str) -> str:
    return f"{above}.{name}" if above else name
