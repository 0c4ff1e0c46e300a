"""Several trainer ranks give the losses, gradients, metrics, weights and optimizer state of one."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from areal_like.training.torch_compile import has_compiler
from tests.support import rank_processes, step_bytes, training_ranks
from tests.support.training_runs import model_folder, world

pytestmark = pytest.mark.xdist_group("trainer-ranks")

ALONE = ["actor", "critic", "adam", "sgd", "lora-adam", "lora-sgd", "adapter", "muon", "adam_bf16"]
WAYS = {1: ALONE, 2: [*ALONE, "sent", "offloaded", "reduced-each", "bytes"], 4: ["replicated"]}
OF_FOUR = ["adam", "sgd", "lora-adam", "lora-sgd", "sent", "reduced-each"]
SEVERAL = (2, pytest.param(4, marks=pytest.mark.slow))


class RankResults(NamedTuple):
    """What a world of some size made."""

    steps: dict[str, list[dict[str, float]]]
    tensors: dict[str, Tensor]

    def of(self, way: str) -> dict[str, Tensor]:
        return {name.removeprefix(f"{way}/"): each for name, each in self.tensors.items() if name.startswith(f"{way}/")}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    actual: Path = tmp_path_factory.mktemp("ranks")
    for name in ("qwen3", "llama"):
        model_folder(actual, name)
    return actual


def words(root: Path, name: str, ways: list[str]) -> list[str]:
    return [str(root / "qwen3"), str(root / f"{name}.json"), *ways]


@pytest.fixture(scope="module")
def worlds(root: Path) -> dict[int, RankResults]:
    """By the number of ranks."""
    calls = {size: words(root, str(size), WAYS[size]) for size in (2, 4)}
    started = rank_processes.start("tests.support.training_ranks:run", calls)
    try:
        training_ranks.run(world(), *words(root, "1", WAYS[1]))
    finally:
        rank_processes.finish(started)
    return {size: _read(root / f"{size}.json") for size in WAYS}


@pytest.fixture(scope="module")
def four(root: Path) -> RankResults:
    """What four ranks make that are no replicas."""
    calls = {4: words(root, "four", OF_FOUR)}
    rank_processes.finish(rank_processes.start("tests.support.training_ranks:run", calls))
    return _read(root / "four.json")


@pytest.fixture
def ranks(size: int, worlds: dict[int, RankResults], request: pytest.FixtureRequest) -> RankResults:
    """The results of so many."""
    together: RankResults = worlds[2] if size == 2 else request.getfixturevalue("four")
    return together


def _read(path: Path) -> RankResults:
    metrics: dict[str, Any] = json.loads(path.read_text())
    return RankResults(metrics, load_file(path.with_suffix(".safetensors")))


def alike(one: dict[str, Tensor], other: dict[str, Tensor], atol: float, rtol: float = 0.0) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, atol=atol, rtol=rtol, msg=name)


@pytest.mark.parametrize("kind", ["", "lora-"])
@pytest.mark.parametrize("size", SEVERAL)
def test_five_steps_have_the_losses_and_gradients_of_one_rank(worlds, ranks, kind):
    for alone, together in zip(worlds[1].steps[f"{kind}adam"], ranks.steps[f"{kind}adam"], strict=True):
        for name in ("train/loss", "train/grad_norm"):
            assert together[name] == pytest.approx(alone[name], rel=1e-6), name


@pytest.mark.parametrize("kind", ["", "lora-"])
@pytest.mark.parametrize("size", SEVERAL)
def test_five_steps_of_descent_end_at_the_weights_of_one_rank(worlds, ranks, kind):
    alike(worlds[1].of(f"{kind}sgd"), ranks.of(f"{kind}sgd"), atol=1e-6)


def test_a_critic_is_equal_on_two_ranks_even_if_one_has_no_tokens(worlds):
    for alone, together in zip(worlds[1].steps["critic"], worlds[2].steps["critic"], strict=True):
        assert together == pytest.approx(alone, rel=2e-5, abs=1e-6)
    alike(worlds[1].of("critic"), worlds[2].of("critic"), atol=1e-5)


@pytest.mark.parametrize(
    ("way", "size"),
    [("adam", 2), ("muon", 2), ("adam_bf16", 2), pytest.param("adam", 4, marks=pytest.mark.slow)],
)
def test_sharded_optimizers_hold_the_state_of_one_rank(worlds, way, ranks):
    rounded = {"atol": 1e-4, "rtol": 1e-2} if way == "adam_bf16" else {"atol": 1e-6, "rtol": 1e-5}
    alike(worlds[1].of(way), ranks.of(way), **rounded)


def test_two_ranks_of_the_actor_learn_from_their_shares_as_one_does_from_all(worlds):
    """All metrics; the first step's loss and gradient come closer than what follows from them."""
    one, two = worlds[1].steps["actor"], worlds[2].steps["actor"]
    for name in ("train/loss", "train/grad_norm"):
        assert two[0][name] == pytest.approx(one[0][name], rel=1e-6), name
    for alone, together in zip(one, two, strict=True):
        assert together == pytest.approx(alone, rel=2e-5, abs=1e-6)
    alike(worlds[1].of("actor"), worlds[2].of("actor"), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("size", SEVERAL)
def test_a_model_sent_by_rank_0_trains_like_one_loaded_by_each_rank(worlds, ranks):
    """The ranks themselves have compared the weights before the first step, to the last bit."""
    alike(worlds[1].of("sgd"), ranks.of("sent"), atol=1e-6)


def test_an_adapter_and_its_reference_are_equal_on_two_ranks(worlds):
    """With a module that is trained in full. The adapter alone is compared, and the weights that it is merged into."""
    one, two = (worlds[size].steps["adapter"] for size in (1, 2))
    for steps in (one, two):
        assert {step["of_reference"] for step in steps} == {steps[0]["of_model"]} != {steps[-1]["of_model"]}
    for alone, together in zip(one, two, strict=True):
        assert together == pytest.approx(alone, rel=1e-6, abs=1e-7)
    alike(worlds[1].of("adapter"), worlds[2].of("adapter"), atol=1e-6, rtol=1e-5)


def test_offloaded_training_gives_the_same_result(worlds):
    assert worlds[2].steps["offloaded"] == worlds[2].steps["adam"]
    alike(worlds[2].of("adam"), worlds[2].of("offloaded"), atol=0)


@pytest.mark.shows("actor.fsdp.dp_replicate")
def test_two_replicas_of_two_ranks_each_are_one_rank(worlds):
    """A gradient that every replica has counts once in its norm. Each rank has half of the weights."""
    for alone, together in zip(worlds[1].steps["adam"], worlds[4].steps["replicated"], strict=True):
        for name in ("train/loss", "train/grad_norm"):
            assert together[name] == pytest.approx(alone[name], rel=1e-6), name
    alike(worlds[1].of("adam"), worlds[4].of("replicated"), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("size", SEVERAL)
def test_gradients_summed_per_micro_batch_are_those_of_one_rank(worlds, ranks):
    """With four ranks: two replicas. The ranks have checked when a gradient is there."""
    for alone, together in zip(worlds[1].steps["adam"], ranks.steps["reduced-each"], strict=True):
        for name in ("train/loss", "train/grad_norm"):
            assert together[name] == pytest.approx(alone[name], rel=1e-6), name
    alike(worlds[1].of("adam"), ranks.of("reduced-each"), atol=1e-6, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not has_compiler(), reason="there is no C++ compiler here")
def test_ranks_compile_layers_together_or_not_at_all(tmp_path):
    """The ranks have checked what happens if one of them cannot."""
    folder = model_folder(tmp_path, "qwen3")
    words = [str(folder), str(tmp_path / "2.json"), "adam", "compiled"]
    rank_processes.finish(rank_processes.start("tests.support.training_ranks:run", {2: words}))
    found = _read(tmp_path / "2.json")
    assert [step.pop("train/compiled_layers") for step in found.steps["compiled"]] == [2.0] * training_ranks.STEPS
    for usual, compiled in zip(found.steps["adam"], found.steps["compiled"], strict=True):
        assert compiled == pytest.approx(usual, rel=1e-5)
    alike(found.of("adam"), found.of("compiled"), atol=1e-6)


@pytest.mark.parametrize("place", range(len(step_bytes.CASES)))
def test_the_plan_counts_the_bytes_of_a_step(worlds, place):
    """Of a real step of two ranks: each item, and that there is never more than planned, and not much less."""
    case, actual = step_bytes.CASES[place], worlds[2].steps["bytes"][place]
    plan = step_bytes.planned(case, num_ranks=2)
    for item in ("weights", "gradients", "optimizer"):
        assert plan[item] == pytest.approx(actual[item], rel=0.01), item
    assert actual["peak"] <= plan["peak"] <= 1.15 * actual["peak"]
