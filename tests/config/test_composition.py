"""The values of a configuration are those that Hydra composes by itself, and those that its layers add up to."""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_like.config.describe.yaml_text import to_yaml
from areal_like.config.dotted_path import nested
from areal_like.config.experiment import GRPOConfig, PPOConfig
from areal_like.config.fields import config, key
from areal_like.config.load import load
from areal_like.config.problems import ConfigError
from areal_like.config.schema import Schema
from areal_like.config.sources.library import data_folder
from tests.bench import plain_hydra
from tests.config.areal_files.expected import PLAIN_FILES, SUBCLASS_FILES
from tests.support.replay import filled, merged, replayed

AREAL = Path(__file__).parent / "areal_files"
FILES: list[tuple[Path, str | None]] = [(file, None) for file in sorted(data_folder("experiments").glob("*.yaml"))]
FILES += [(AREAL / f"{name}.yaml", None) for name in PLAIN_FILES]
FILES += [(AREAL / f"{name}.yaml", schema) for name, (schema, _) in SUBCLASS_FILES.items()]
SCHEMA = Schema.of(PPOConfig)

OF_A_MODEL: dict[str, st.SearchStrategy[Any]] = {
    "path": st.sampled_from(["a", "b/c", "a: b", "#", "null", "${seed}"]),
    "optimizer": st.none(),
    "optimizer.lr": st.floats(1e-6, 1e-2),
    "optimizer.beta1": st.floats(0.5, 0.99),
    "mb_spec.granularity": st.integers(1, 4),
    "fsdp.wrap_policy": st.sampled_from([None, {}]),
    "fsdp.wrap_policy.transformer_layer_cls_to_wrap": st.lists(st.sampled_from("AB"), min_size=1, max_size=2),
    "gradient_checkpointing": st.booleans(),
}
OF_ALL = {f"{model}.{path}": values for model in ("actor", "critic") for path, values in OF_A_MODEL.items()}
OF_ALL |= {f"launcher.env.{name}": st.sampled_from(["x", "y", None]) for name in "AB"}
OF_ALL |= {"launcher.env": st.just({}), "seed": st.integers(1, 9), "vllm.extra_args.deep.er": st.integers(1, 9)}
OVERRIDES = {  # as given -> in plain Hydra
    "actor.optimizer.lr=0.5": "++actor.optimizer.lr=0.5",
    "~actor.optimizer": "++actor.optimizer=null",
    "critic.optimizer=None": "++critic.optimizer=null",
    "critic.optimizer.beta2=0.75": "++critic.optimizer.beta2=0.75",
    "+launcher.env.C='a b'": "++launcher.env.C='a b'",
    "launcher.env.D='it\\'s \\\\ $'": "++launcher.env.D='it\\'s \\\\ $'",
    "~launcher.env.C": "~launcher.env.C",
    "critic.fsdp.wrap_policy.transformer_layer_cls_to_wrap=[C]": (
        "++critic.fsdp.wrap_policy.transformer_layer_cls_to_wrap=[C]"
    ),
}


def some(strategies: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """A tree of some of the keys."""
    pairs = st.sampled_from(sorted(strategies)).flatmap(lambda path: st.tuples(st.just(path), strategies[path]))
    return st.lists(pairs, max_size=4).map(nested)


@dataclass
class File:
    body: dict[str, Any]
    defaults: list[Any] = field(default_factory=list)
    header: str = ""

    def text(self, chosen: set[str]) -> str:
        """Without the groups that the command line chooses."""
        entries = [e for e in self.defaults if isinstance(e, str) or next(iter(e)) not in chosen]
        return self.header + to_yaml({**({"defaults": entries} if entries else {}), **self.body})


@dataclass
class Experiment:
    files: dict[str, File]
    groups: dict[str, str]
    overrides: list[str]

    def write(self, folder: Path, chosen: set[str]) -> None:
        for name, file in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.yaml").write_text(file.text(chosen), encoding="utf-8")


@st.composite
def experiments(draw: st.DrawFn) -> Experiment:
    """Groups at a section, at another one, and at the top; options that build on others; null sections."""

    def beside(below: Any) -> list[Any]:
        return draw(st.sampled_from([[], [below], [below, "_self_"], ["_self_", below]]))

    top = "# @package _global_\n"
    files = {
        "actor/own": File(draw(some(OF_A_MODEL))),
        "actor/small": File(draw(some(OF_A_MODEL)), beside("own")),
        "critic/own": File(draw(some(OF_A_MODEL))),
        "mine/first": File(draw(some(OF_ALL)), header=top),
        "mine/second": File(draw(some(OF_ALL)), beside("first"), top),
        "base": File(draw(some(OF_ALL)), [*beside({"mine": "first"})], top),
    }
    entries: list[Any] = [{"actor": "small"}, draw(st.sampled_from([{"critic": "own"}, {"actor@critic": "own"}]))]
    entries = draw(st.permutations([*draw(st.lists(st.sampled_from(entries), unique_by=str)), "base", "_self_"]))
    named = {"experiment_name": "generated", "actor": {"path": "m"}, "critic": {"path": "m"}}
    files["file"] = File(merged(named, draw(some(OF_ALL))), list(entries))
    groups = draw(st.dictionaries(st.sampled_from(["actor", "critic", "mine"]), st.just(""), max_size=2))
    options = {"actor": "own", "critic": "own", "mine": "second"}
    overrides = draw(st.lists(st.sampled_from([*OVERRIDES]), unique=True, max_size=3))
    if "~launcher.env.C" in overrides:
        overrides = ["+launcher.env.C='a b'", *(word for word in overrides if not word.startswith("+"))]
    return Experiment(files, {group: options[group] for group in groups}, overrides)


@settings(max_examples=settings().max_examples // 10)
@given(experiments())
def test_values_are_those_of_plain_hydra_and_of_the_layers(experiment: Experiment) -> None:
    words = [f"{group}={option}" for group, option in experiment.groups.items()]
    with tempfile.TemporaryDirectory() as name:
        ours, plain = Path(name) / "ours", Path(name) / "plain"
        experiment.write(ours, set())
        loaded = load(ours / "file.yaml", [*words, *experiment.overrides])
        assert replayed(loaded) == loaded.raw

        experiment.write(plain, set(experiment.groups))
        opened = [path for path, section in SCHEMA.sections.items() if isinstance(loaded.get_raw(path), dict)]
        (plain / "schema.yaml").write_text(to_yaml(SCHEMA.defaults(opened)), encoding="utf-8")
        (plain / "of_ppo.yaml").write_text((data_folder("conf") / "experiment" / "ppo.yaml").read_text())
        chosen = [{group: option} for group, option in experiment.groups.items()]
        (plain / "root.yaml").write_text(to_yaml({"defaults": ["schema", "of_ppo", "file", *chosen]}))
        composed = plain_hydra.compose(plain, "root.yaml", [OVERRIDES[word] for word in experiment.overrides])
        assert filled(SCHEMA, composed) == loaded.raw


@pytest.mark.parametrize(("file", "schema"), FILES, ids=lambda value: getattr(value, "stem", ""))
def test_layers_of_every_file_add_up_to_its_values(file: Path, schema: str | None) -> None:
    loaded = load(file, schema=schema)
    assert replayed(loaded) == loaded.raw


@config
class WithTools(GRPOConfig):
    tools: dict[str, int] = key({"search": 1, "run": 2})
    """A map whose default has entries."""


def test_entries_are_added_to_the_default_of_a_map_and_deleted_from_it(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("experiment_name: a\nactor: {path: m}\ntools: {read: 3}\n")
    loaded = load(tmp_path / "a.yaml", ["~tools.run", "+tools.write=4"], schema=f"{__name__}:WithTools")
    assert loaded.get("tools") == {"search": 1, "read": 3, "write": 4}
    assert replayed(loaded) == loaded.raw
    for words in (["~tools.walk"], ["+tools.walk=1", "~tools.walk", "~tools.walk"]):
        with pytest.raises(ConfigError, match=r"tools.walk \[override ~tools.walk\]: no such entry to delete"):
            load(tmp_path / "a.yaml", words, schema=f"{__name__}:WithTools")
