"""Any file and any command line gives a configuration or a list of problems, never another exception.

No unknown key is accepted, and the output of `--cfg` loads to the same values.
"""

import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from areal_like.config.describe.yaml_text import to_yaml
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.load import load
from areal_like.config.loaded import Loaded
from areal_like.config.names import ALIASES
from areal_like.config.problems import ConfigError
from areal_like.config.schema import Schema
from areal_like.config.sources.yaml_file import read_yaml
from launcher.commands.show_config import configuration_text
from tests.support.replay import replayed

SCHEMA = Schema.of(EXPERIMENTS["ppo"])
KEYS = [path for path in SCHEMA.keys if "[]" not in path]
SECTIONS = [path for path in SCHEMA.sections if path and "[]" not in path]
BASE: dict[str, Any] = {"experiment_name": "p", "actor": {"path": "m"}, "critic": {"eps_clip": 0.3}}

texts = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            "yes",
            "no",
            "on",
            "None",
            "null",
            "auto",
            "true",
            "1e-4",
            "0x10",
            "1_000",
            "08",
            "nan",
            ".inf",
            "~",
            "${seed}",
            "${actor.path}",
            "${",
            "${a.b}",
            "\\${x}",
            "${oc.env:HOME}",
            "x${seed}y",
            "${.path}",
            "???",
            "a b",
            "a:b",
            "- x",
            "#",
            "'",
            '"',
            "\\",
            "sgd",
            "group",
            "1:30",
            "2024-01-01",
            "[",
            "{}",
        ]
    ),
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 10**6), st.integers(), st.floats(), st.floats(0, 1), texts
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=4,
)
paths = st.one_of(
    st.sampled_from(KEYS),
    st.sampled_from(KEYS),
    st.sampled_from(SECTIONS),
    st.sampled_from(list(ALIASES)),
    st.builds(
        lambda path, extra: f"{path}.{extra}", st.sampled_from(KEYS + SECTIONS), st.sampled_from(["x", "lr", "0"])
    ),
    st.builds(lambda path, cut: path[:cut] + path[cut + 1 :], st.sampled_from(KEYS), st.integers(0, 20)),
)


# A composition takes a tenth of a second: the tests of whole compositions share out the examples of the profile.
composing = settings(max_examples=settings().max_examples // 4)


def fitting(path: str) -> st.SearchStrategy[Any]:
    """Values that a key may well take, so that mutated files are often right."""
    key = SCHEMA.keys[path]
    if key.choices:
        return st.sampled_from(list(key.choices))
    limits = key.constraints
    by_kind: dict[str, st.SearchStrategy[Any]] = {
        "bool": st.booleans(),
        "int": st.integers(int(limits.ge or limits.gt or 0) + 1, 5000),
        "float": st.floats(0.01, 0.99),
        "str": texts,
        "list": st.lists(texts, max_size=3),
        "map": st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), scalars, max_size=3),
    }
    return st.one_of(by_kind.get(key.kind.name, scalars), st.just(key.default))


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    node = tree
    *above, name = path.split(".")
    for step in above:
        if not isinstance(node.get(step), dict):
            node[step] = {}
        node = node[step]
    node[name] = value


def attempt(text: str | bytes, overrides: list[str]) -> Loaded | ConfigError:
    """Loads; any other exception than ConfigError fails the test."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "f.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
        try:
            return load(file, overrides)
        except ConfigError as error:
            assert error.problems
            assert all(problem.key and problem.message for problem in error.problems)
            return error


def is_known(path: str) -> bool:
    return path in SCHEMA.keys or path in SCHEMA.sections or path in ALIASES or SCHEMA.map_above(path) is not None


def assert_comes_back(loaded: Loaded) -> None:
    """Hydra's values are those of the layers, and `--cfg` output loads to them again (a literal secret excepted: it is
    blank there)."""
    assert replayed(loaded) == loaded.raw
    text = configuration_text(loaded)
    again = attempt(text, [])
    assert isinstance(again, Loaded), f"{again}\n{text}"
    assert configuration_text(again) == text


@composing
@given(st.lists(st.tuples(paths, values), min_size=1, max_size=4))
def test_mutated_files_load_or_give_an_error(mutations: list[tuple[str, Any]]) -> None:
    tree = deepcopy(BASE)
    for path, value in mutations:
        put(tree, path, value)
    result = attempt(to_yaml(tree), [])
    if isinstance(result, Loaded):
        assert all(is_known(path) for path, _ in mutations)
        assert_comes_back(result)


@composing
@given(st.data())
def test_files_with_valid_values_load_and_print_to_the_same(data: st.DataObject) -> None:
    tree = deepcopy(BASE)
    for path in data.draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=5)):
        put(tree, path, data.draw(fitting(path), label=path))
    result = attempt(to_yaml(tree), [])
    if isinstance(result, Loaded):
        assert_comes_back(result)


@composing
@given(st.lists(st.tuples(st.sampled_from(["", "", "", "+", "++", "~"]), paths, values), min_size=1, max_size=3))
def test_overrides_load_or_give_an_error(words: list[tuple[str, str, Any]]) -> None:
    overrides = [f"{sign}{path}" if sign == "~" else f"{sign}{path}={_typed(value)}" for sign, path, value in words]
    result = attempt(to_yaml(BASE), overrides)
    if isinstance(result, Loaded):
        assert all(is_known(path) or path in ("actor", "critic", "rollout", "task", "cluster") for _, path, _ in words)
        assert_comes_back(result)


def _typed(value: Any) -> str:
    """A value as typed by a user: sometimes in Hydra's grammar, sometimes not."""
    if isinstance(value, list):
        return "[" + ",".join(_typed(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{_typed(item)}" for name, item in value.items()) + "}"
    return "null" if value is None else str(value)


@given(st.one_of(st.text(max_size=200), st.binary(max_size=200)))
def test_any_bytes_are_a_configuration_or_a_problem(content: str | bytes) -> None:
    attempt(content, [])


@composing
@given(st.text(max_size=30))
def test_any_word_is_an_override_or_a_problem(word: str) -> None:
    attempt(to_yaml(BASE), [word])


@given(st.dictionaries(st.text(max_size=8), values, max_size=4))
def test_printed_configurations_load_again(tree: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "f.yaml"
        file.write_text(to_yaml({"top": tree}), encoding="utf-8", errors="surrogatepass")
        read = read_yaml(file, "f.yaml")
        if read.root is not None:
            assert repr(read.root.plain()) == repr({"top": {str(name): item for name, item in tree.items()}})
