"""A process hands its GPU a whole update before it waits for it, once."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from areal_like.algorithms.statistics import statistics
from areal_like.config.built_in import BUILT_IN
from areal_like.config.sections.actor import PPOCriticConfig
from areal_like.config.sections.train_engine import MicroBatchSpec
from areal_like.observe.timing import Stopwatch
from areal_like.training.actor import Actor
from areal_like.training.batch import RETURNS, VALUES, TrainingBatch
from areal_like.training.critic import Critic
from areal_like.training.device_sums import DeviceSums
from areal_like.training.engine import TrainEngine
from areal_like.training.optimizer_step import sum_of_squares
from areal_like.training.reference import ReferenceModel
from areal_like.training.reward_model import RewardModelLearner
from areal_like.training.supervised import SupervisedLearner
from tests.support.device_reads import counted
from tests.support.training_runs import make_engine, model_folder, section, world
from tests.training.test_actor_keys import actor_of, batch_of

REWARDS, GENERATED = [1.0, 0.0, 4.0, 2.0], [2, 10, 8, 4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("reads"), "qwen3")


def split_engine(folder: Path, num_micros: int, **settings: Any) -> TrainEngine:
    return make_engine(folder, mb_spec=section(MicroBatchSpec, n_mbs=num_micros), gradient_clipping=1.0, **settings)


def batch() -> TrainingBatch:
    return batch_of(REWARDS, GENERATED)


@pytest.mark.parametrize("num_updates", [1, 2])
@pytest.mark.parametrize("num_micros", [1, 4])
def test_a_step_of_the_policy_waits_for_the_device_once_for_each_update(folder, num_micros, num_updates):
    """From the batch in host memory to the metrics: whether an update is finite decides how the next one begins."""
    engine = split_engine(folder, num_micros)
    for loss in BUILT_IN["actor.loss"]:
        waits, of_step = Counter[str](), batch()
        words = [f"actor.loss={loss}", "actor.kl_ctl=0.1", "actor.kl_in=loss", "actor.entropy_coef=0.01"]
        words += ["actor.ratio.level=sequence", "actor.ratio.sequence_mask_low=0.1"]
        words += ["actor.loss_aggregation=sequence_mean_token_mean", "actor.use_decoupled_loss=true"]
        config = actor_of(*words, f"actor.ppo_n_minibatches={num_updates}")
        actor = Actor(engine, ReferenceModel(engine), config, seed=1)
        actor.compute_logprobs(of_step, Stopwatch())
        actor.compute_advantages(of_step, Stopwatch())
        with counted(waits, engine.module):
            metrics = actor.update(of_step, Stopwatch())
        assert metrics["train/updates"] == num_updates and metrics["train/entropy"] > 0 and "train/kl_ref" in metrics
        assert waits == {"tolist": num_updates}, loss


@pytest.mark.parametrize("num_micros", [1, 4])
def test_an_update_of_the_critic_waits_for_the_device_once(folder, num_micros):
    engine = split_engine(folder, num_micros, is_critic=True)
    critic = Critic(engine, section(PPOCriticConfig, path=str(folder), optimizer=engine.config.optimizer), seed=1)
    waits, of_step = Counter[str](), batch()
    critic.compute_values(of_step, Stopwatch())
    of_step.sequences.fields[RETURNS] = of_step.sequences.fields[VALUES] + np.float32(1)
    with counted(waits, engine.module):
        assert critic.update(of_step, Stopwatch())["critic/updates"] == 4
    assert waits == {"tolist": 4}


@pytest.mark.parametrize("learner_class", [SupervisedLearner, RewardModelLearner])
def test_a_step_of_supervised_training_waits_for_the_device_once(folder, learner_class):
    engine, waits = split_engine(folder, 2, is_critic=learner_class is RewardModelLearner), Counter[str]()
    learner, sequences = learner_class(engine, 1), batch().sequences
    with counted(waits, engine.module):
        assert learner.step(sequences, 0)["train/updates"] == 1
    assert waits == {"tolist": 1}


@pytest.mark.parametrize("at_once", [True, False])
def test_a_mixture_of_experts_waits_in_its_layers_only_where_experts_are_computed_one_by_one(tmp_path, at_once):
    engine = split_engine(model_folder(tmp_path, "qwen3_moe"), 1, moe_use_grouped_mm=at_once, dtype="bfloat16")
    waits, sequences = Counter[str](), batch().sequences
    with counted(waits, engine.module):
        SupervisedLearner(engine, 1).step(sequences, 0)
    assert (waits == {"tolist": 1}) == at_once
    assert at_once or waits["aten.nonzero.default"] >= engine.model.config.num_hidden_layers


WAITING: dict[str, Callable[[Tensor], Any]] = {
    "tolist": lambda there: there.tolist(),
    "cpu": lambda there: (2 * there).cpu(),
    "numpy": lambda there: there.detach().numpy(),
    "to": lambda there: there + torch.ones(3).to(there.device),
    "tensor": lambda there: torch.tensor([1.0], device=there.device) * there,
    "aten._local_scalar_dense.default": lambda there: float(there.sum()),
    "aten.nonzero.default": lambda there: (there > 0).nonzero(),
    "aten.index.Tensor": lambda there: there[there > 0],
    "aten.masked_select.default": lambda there: there.masked_select(there > 0),
}


@pytest.mark.parametrize("name", WAITING)
def test_what_waits_for_a_device_is_counted(name):
    counts, module = Counter[str](), torch.nn.Module()
    module.register_buffer("there", torch.ones(3))
    assert isinstance(module.there, Tensor)
    with counted(counts, module):
        WAITING[name](module.there)
        for waiting in WAITING.values():  # what is in host memory makes nothing wait
            waiting(torch.ones(3)) if waiting not in (WAITING["to"], WAITING["tensor"]) else None
        (torch.ones(3).to(module.there.device, non_blocking=True) + module.there).sum()
    assert counts == {name: 1}


def test_sums_of_micro_batches_equal_those_of_python():
    draw = np.random.default_rng(0)
    values, sums = draw.normal(size=(5, 2)).astype(np.float32), DeviceSums()
    for one, other in values:
        sums.add({"one": torch.tensor(one), "other": torch.tensor(other)}, {"top": torch.tensor(one)})
    sums.add({"once": torch.tensor(2.5)}, {"top": torch.tensor(float("nan"))})
    expected = {"one": sum(map(float, values[:, 0])), "other": sum(map(float, values[:, 1])), "once": 2.5}
    assert sums.read() == {**expected, "top": float(max(0.0, *values[:, 0]))}
    assert DeviceSums().read() == {}


def test_a_sum_counts_every_call_whatever_else_is_in_it():
    """A user's loss may report a statistic for some micro-batches only, or in another order."""
    sums = DeviceSums()
    for names in ("ab", "a", "ba"):
        sums.add({name: torch.tensor(1.0) for name in names}, {f"top {name}": torch.tensor(2.0) for name in names})
    sums.read()
    sums.add({}, {"top b": torch.tensor(1.0)})
    assert sums.read_with(torch.tensor([7.0, 8.0])) == [7.0, 8.0]
    assert sums.read() == {"a": 3.0, "b": 2.0, "top a": 2.0, "top b": 2.0}


class Made(TorchDispatchMode):
    """Tensors that operators return."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[Tensor] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.tensors += [each for each in tree_leaves(result) if isinstance(each, Tensor)]
        return result

    @property
    def doubles(self) -> list[int]:
        """Sizes of those in double precision, but for single numbers."""
        return [each.numel() for each in self.tensors if each.dtype == torch.float64 and each.numel() > 1]


def test_statistics_on_a_gpu_make_no_copies_in_double_precision():
    values = torch.ones(1000, device="meta")
    with Made() as made:
        result = statistics(values > 0, {"loss": values}, {"largest": values})
    assert result.sums["loss"].dtype == torch.float64 and not made.doubles


def test_the_norm_of_gradients_is_exact_without_copies_in_double_precision():
    gradients = [torch.full((4000,), 0.1), torch.full((30, 40), 1e-3), torch.zeros(0, 4)]
    with Made() as made:
        squares = sum_of_squares(gradients)
    assert set(made.doubles) == {len(gradients)}, "a norm for each tensor"
    exact = sum(float(each.double().square().sum()) for each in gradients)
    assert squares.item() == pytest.approx(exact, rel=1e-12)


def test_numbers_of_python_are_summed_over_ranks_in_host_memory(monkeypatch):
    """On a GPU a sum would wait for all kernels before it."""
    ranks, devices = world(), list[str]()
    monkeypatch.setattr(ranks, "size", 2)
    monkeypatch.setattr(ranks, "device", torch.device("meta"))
    for name in ("all_reduce", "broadcast"):
        monkeypatch.setattr(dist, name, lambda tensor, **how: devices.append(tensor.device.type))
    assert (ranks.sum([1.5]), ranks.max([2.0]), ranks.first([3.0])) == ([1.5], [2.0], [3.0])
    assert devices == ["cpu"] * 3
