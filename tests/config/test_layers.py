"""One order of precedence of all layers, for every key."""

from itertools import combinations
from pathlib import Path

import pytest

from areal_like.config.load import load

KEY = "model.mb_spec.granularity"
LAYERS = ["default", "group of the schema", "group of the file", "file", "group of the command line", "override"]
VALUES = {name: index + 3 for index, name in enumerate(LAYERS)}
"""The value that each layer sets, except the schema and its group."""
VALUES["default"] = 1
VALUES["group of the schema"] = 2


def experiment(folder: Path, layers: set[str]) -> tuple[Path, list[str]]:
    """A reward-model experiment in which exactly these layers (the default always) set KEY."""
    (folder / "mine").mkdir()
    (folder / "mine" / "none.yaml").write_text("# @package _global_\nexperiment_name: from-a-group\n")
    (folder / "other").mkdir()
    for option, layer in (("mine/infile", "group of the file"), ("other/online", "group of the command line")):
        text = f"# @package _global_\nmodel:\n  mb_spec:\n    granularity: {VALUES[layer]}\n"
        (folder / f"{option}.yaml").write_text(text)
    body = f"model:\n  mb_spec:\n    granularity: {VALUES['file']}\n" if "file" in layers else ""
    kind = "reward_model" if "group of the schema" in layers else "sft"
    option = "infile" if "group of the file" in layers else "none"
    file = folder / "mine.yaml"
    file.write_text(
        f"defaults:\n  - mine: {option}\nexperiment_name: layers\ntrain_dataset:\n  type: "
        f"{'rw' if kind == 'reward_model' else 'sft'}\n{body}"
    )
    overrides = ["other=online"] if "group of the command line" in layers else []
    if "override" in layers:
        overrides.append(f"{KEY}={VALUES['override']}")
    return file, overrides


@pytest.mark.parametrize(("weaker", "stronger"), list(combinations(LAYERS, 2)))
def test_the_stronger_of_two_layers_wins_and_names_the_overridden_one(
    tmp_path: Path, weaker: str, stronger: str
) -> None:
    file, overrides = experiment(tmp_path, {weaker, stronger})
    loaded = load(file, overrides)
    origin = loaded.origin(KEY)
    assert (loaded.get(KEY), origin.kind) == (VALUES[stronger], stronger)
    assert (origin.beaten[0].kind, origin.beaten[0].value) == (weaker, VALUES[weaker])


def test_all_layers_have_one_order_of_precedence(tmp_path: Path) -> None:
    file, overrides = experiment(tmp_path, set(LAYERS))
    origin = load(file, overrides).origin(KEY)
    assert [origin.kind, *(beaten.kind for beaten in origin.beaten)] == LAYERS[::-1]


def test_self_takes_effect_at_its_place_in_the_defaults_list(tmp_path: Path) -> None:
    file, _ = experiment(tmp_path, {"group of the file", "file"})
    assert load(file).get(KEY) == VALUES["file"]
    file.write_text(file.read_text().replace("defaults:\n", "defaults:\n  - _self_\n"))
    assert load(file).get(KEY) == VALUES["group of the file"]


def test_a_file_can_build_on_another_and_override_its_groups(tmp_path: Path) -> None:
    experiment(tmp_path, {"group of the file"})
    top = tmp_path / "top.yaml"
    top.write_text("defaults:\n  - mine\nexperiment_name: top\n")
    assert load(top).get(KEY) == VALUES["group of the file"]
    assert load(top).get("experiment_name") == "top"
    top.write_text("defaults:\n  - mine\n  - override /mine: none\nexperiment_name: top\n")
    assert load(top).get(KEY) == VALUES["default"]
    assert load(top, ["mine=infile"]).get(KEY) == VALUES["group of the file"]
    assert load(top, ["~mine"]).get(KEY) == VALUES["default"]


def test_an_alias_is_its_real_path_in_files_and_overrides(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("experiment_name: a\nactor:\n  lr: 3e-4\n")
    assert load(file).get("actor.optimizer.lr") == 3e-4
    assert load(file, ["actor.optimizer.lr=1e-3"]).get("actor.optimizer.lr") == 1e-3
    assert load(file, ["actor.lr=2"]).get("actor.optimizer.lr") == 2.0
    assert load(file, ["fileroot=/somewhere"]).get("saver.fileroot") == "/somewhere"


def test_setting_a_key_below_a_null_section_creates_the_section(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("experiment_name: a\nactor:\n  path: m\n")
    assert load(file).get("actor.adv_norm") is None
    opened = load(file, ["actor.adv_norm.std_level=None"])
    assert opened.get("actor.adv_norm.std_level") is None
    assert opened.get("actor.adv_norm.mean_level") == "batch"
    assert load(file, ["actor.optimizer=null"]).get("actor.optimizer") is None
    assert load(file, ["~actor.optimizer"]).get("actor.optimizer") is None
    reopened = load(file, ["actor.optimizer=None", "actor.lr=0.5"]).get("actor.optimizer")
    assert (reopened["lr"], reopened["beta1"]) == (0.5, 0.9)


def test_shared_values_reach_every_copy(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("experiment_name: a\nactor:\n  path: some/model\n  dtype: float32\n")
    loaded = load(
        file,
        [
            "gconfig.n_samples=6",
            "gconfig.temperature=0.7",
            "seed=9",
            "train_dataset.batch_size=5",
            "gconfig.max_new_tokens=77",
            "cluster.fileroot=/data",
            "trial_name=t",
        ],
    )
    config = loaded.config
    assert config.actor.group_size == 6
    assert config.actor.temperature == config.ref.temperature == 0.7
    assert config.actor.max_new_tokens == 77
    assert config.rollout.consumer_batch_size == 5
    assert config.tokenizer_path == config.ref.path == config.vllm.model == config.sglang.model_path == "some/model"
    assert config.vllm.dtype == config.sglang.dtype == config.ref.dtype == "float32"
    assert config.vllm.seed == config.sglang.random_seed == 9
    assert config.saver.fileroot == config.stats_logger.fileroot == "/data"
    assert config.recover.trial_name == config.actor.trial_name == "t"


def test_maps_grow_and_shrink_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("experiment_name: a\nactor: {path: m}\nlauncher:\n  env: {A: one, B: 2}\n")
    assert load(file).get("launcher.env") == {"A": "one", "B": "2"}
    changed = load(file, ["+launcher.env.C=3", "launcher.env.A=x", "~launcher.env.B", "++launcher.env.D='${seed}'"])
    assert changed.get("launcher.env") == {"A": "x", "C": "3", "D": "1"}


@pytest.mark.parametrize("kind", ["sft", "reward_model", "ppo"])
def test_the_base_of_a_file_decides_its_kind_of_experiment(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"defaults: [{kind}, _self_]\nexperiment_name: mine\ntrain_dataset:\n  path: rows.jsonl\n")
    assert load(file).experiment == kind
