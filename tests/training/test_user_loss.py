"""User losses: inputs by name, checks before the first step, and the same treatment as built-in losses."""

import importlib
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from areal_like.algorithms.losses import Inputs, Loss
from areal_like.algorithms.losses.base import summed
from areal_like.config.built_in import LOSS_KEYS, LOSSES
from areal_like.config.checks.built_in_code import loss_parameters
from areal_like.config.checks.user_code import LOSS_INPUTS
from areal_like.config.problems import ConfigError
from areal_like.config.sections.actor import PPOActorConfig
from areal_like.data.user_code import SearchFolders, load_built_in
from areal_like.observe.metrics import find_metric
from areal_like.process.errors import FinalFailure
from areal_like.training.actor import Actor
from areal_like.training.loss_example import example
from areal_like.training.main import load_trained_engine
from areal_like.training.policy_loss import UserLoss, actor_loss
from areal_like.training.reference import NoReference
from tests.support.training_runs import make_run, train_step, world
from tests.training.test_actor_keys import PLAIN, batch_of, folder_of, sampled

CODE = """
import torch

from areal_like.algorithms.losses import Loss
from areal_like.algorithms.statistics import Statistics, statistics


def tokens(logprobs, old_logprobs, advantages):
    return -advantages * (logprobs - old_logprobs).exp()


def weighted(weights, **known):
    return (tokens(known["logprobs"], known["old_logprobs"], known["advantages"]) * weights).sum()


def reported(logprobs, old_logprobs, advantages, loss_mask, weights, *, scale=1.0):
    loss = scale * tokens(logprobs, old_logprobs, advantages)
    return Loss((loss * weights).sum(), statistics(loss_mask, {"ratio": (logprobs - old_logprobs).exp()}, {}))


def counts_itself(logprobs, advantages):
    sums = {"calls": 1.0, "best": logprobs.detach().max().reshape(1)}
    if len(logprobs) > 5:
        sums["tokens"] = torch.tensor(len(logprobs))
    return Loss(-(advantages * logprobs).sum(), Statistics(sums, {}))


def drawn_back(logprobs, reference_logprobs, kl_ctl):
    return 0 * logprobs if reference_logprobs is None else kl_ctl * (logprobs - reference_logprobs).square() / 2


def every_token(logprobs):
    return -logprobs


def since_the_start(logprobs, proximal_logprobs):
    return (logprobs - proximal_logprobs).square() + 1e-6 * logprobs


def of_entropy(entropy, loss_mask, cu_seqlens):
    assert len(entropy) == len(loss_mask) == cu_seqlens[-1]
    return -entropy


def breaks_later(logprobs, advantages):
    if len(logprobs) not in (5, 10):
        raise KeyError("step")
    return -advantages * logprobs


def breaks_to_nan(logprobs):
    return logprobs if len(logprobs) in (5, 10) else logprobs * float("nan")


CALLS = []


def warms_up(logprobs, advantages):
    CALLS.append(1)
    return -(advantages * logprobs).sum() * len(CALLS) / 100


def noisy(logprobs, advantages):
    return -(advantages * logprobs * torch.rand(len(logprobs))).mean()


def of_answers(logprobs, advantages, cu_seqlens):
    begins, ends = cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist()
    return sum(-(advantages * logprobs)[begin:end].mean() for begin, end in zip(begins, ends))


def normalized(logprobs, advantages):
    return -(advantages - advantages.mean()) / advantages.std() * logprobs


def of_mean(logprobs, advantages): return -(logprobs * advantages).mean()
def mean_by_token(logprobs, advantages): return -(logprobs * advantages) / len(logprobs)
def mean_and_entropy(logprobs, entropy): return logprobs.mean() - entropy.sum()
def mean_of_answers(logprobs, cu_seqlens): return logprobs.sum() / (len(cu_seqlens) - 1)
def no_gradient(advantages): return advantages
def no_loss(logprobs): return {"loss": logprobs}
def wrong_shape(logprobs): return logprobs[:2]
def not_finite(logprobs): return logprobs / 0
def wants_more(logprobs, tau): return logprobs
def raises(logprobs): return logprobs + undefined
number = 3
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    actual: Path = tmp_path_factory.mktemp("loss")
    (actual / "mine.py").write_text(CODE)
    (actual / "package").mkdir()
    (actual / "package" / "losses.py").write_text(CODE)
    return actual


def config_of(loss: str, **settings: Any) -> PPOActorConfig:
    return PPOActorConfig(path="", loss=loss, **{"kl_ctl": 0.0, "entropy_coef": 0.0} | settings)


def own(root: Path, loss: str, has_reference: bool = False, **settings: Any) -> UserLoss:
    return UserLoss(config_of(loss, **settings), SearchFolders(root, root), has_reference, torch.device("cpu"))


@cache
def step(root: Path, *overrides: str, rewards: tuple[float, ...] = (1.0, 0.5, 0.2, 1.0)) -> dict[str, float]:
    """On answers from a policy somewhat apart."""
    words = (f"actor.path={folder_of(root)}", *PLAIN, "gconfig.temperature=0.5", "actor.eps_clip=1e6", *overrides)
    run = make_run(root / "run", "grpo", *words)
    engine = load_trained_engine(run, run.config.actor, "actor", world())
    actor = Actor(engine, NoReference(), run.config.actor, run.config.seed, SearchFolders(root, root))
    batch = batch_of(list(rewards), [3, 4, 5, 6])
    batch.sequences.fields["logprobs"] = sampled(actor, batch, 0.5, gap=0.1)
    return train_step(actor, batch)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean_token_mean"])
@pytest.mark.parametrize("name", ["mine.py:tokens", "mine.py:weighted", "mine.py:reported", "package.losses.tokens"])
def test_a_user_loss_trains_like_the_built_in_one(root, name, aggregation) -> None:
    """A loss per token, their sum, or a Loss: divided by the count of the whole batch."""
    overrides = (f"actor.loss_aggregation={aggregation}", "actor.ppo_n_minibatches=1")
    ours, theirs = (
        step(root, *overrides),
        step(root, *overrides, f"actor.loss={root}/{name}" if ":" in name else f"actor.loss={name}"),
    )
    for metric in ("train/loss", "train/grad_norm", "train/entropy", "offpolicy/kl"):
        assert theirs[metric] == pytest.approx(ours[metric], rel=1e-5), metric


def test_a_user_loss_has_arguments_and_reports_metrics(root) -> None:
    once = step(root, f"actor.loss={root}/mine.py:reported")
    twice = step(root, f"actor.loss={root}/mine.py:reported", "+actor.loss_args.scale=2")
    assert twice["train/loss"] == pytest.approx(2 * once["train/loss"], rel=1e-5)
    assert once["train/own/ratio"] == pytest.approx(np.exp(0.1), rel=1e-4)
    assert "train/clip_fraction" not in once and not [name for name in step(root) if name.startswith("train/own")]


def moved(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, loss_mask: Tensor, weights: Tensor) -> Loss:
    """A built-in loss with a statistic of its own."""
    distance = (logprobs - old_logprobs).abs()
    return summed(-logprobs * advantages, loss_mask, weights, distance=distance, taken_out=distance > 1)


def test_a_built_in_loss_reports_a_statistic_that_no_other_file_lists(root, monkeypatch) -> None:
    monkeypatch.setitem(LOSSES, "moved", f"{__name__}:moved")
    actual = step(root, "actor.loss=moved")
    assert actual["train/own/distance"] == pytest.approx(0.1, rel=1e-4) and actual["train/taken_out"] == 0
    assert "train/own/taken_out" not in actual and find_metric("train/own/distance")


def test_a_user_loss_may_count_by_itself_what_it_reports(root) -> None:
    """With numbers of Python, in tensors of any form, and not the same for every micro-batch."""
    metrics = step(root, f"actor.loss={root}/mine.py:counts_itself", "actor.ppo_n_minibatches=1")
    calls = metrics["train/own/calls"] * metrics["train/loss_tokens"]
    assert calls == pytest.approx(round(calls)) and calls >= 1 and metrics["train/own/best"] < 0


def test_a_user_loss_gets_every_token_even_without_advantage(root) -> None:
    actual = step(root, f"actor.loss={root}/mine.py:every_token", rewards=(0.0, 0.0, 0.0, 0.0))
    assert actual["train/grad_norm"] > 1e-3
    assert step(root, rewards=(0.0, 0.0, 0.0, 0.0))["train/grad_norm"] == 0


def test_the_policy_at_the_start_of_a_step_is_computed_on_request(root) -> None:
    """Over four updates the policy moves away from it."""
    overrides = ("actor.ppo_n_minibatches=4", "actor.optimizer.lr=0.01")
    assert step(root, *overrides, f"actor.loss={root}/mine.py:since_the_start")["train/loss"] > 1e-3
    assert step(root, "actor.ppo_n_minibatches=1", f"actor.loss={root}/mine.py:since_the_start")["train/loss"] < 1e-3


def test_a_user_loss_can_take_entropy_and_sequence_bounds(root) -> None:
    inputs = example(False, torch.device("cpu"))
    assert inputs.entropy is not None
    assert own(root, "mine.py:of_entropy")(inputs).total.item() == pytest.approx(-inputs.entropy.sum().item())


def test_entropy_bonus_and_kl_penalty_are_added_to_a_user_loss(root) -> None:
    inputs = example(True, torch.device("cpu"))
    assert inputs.entropy is not None and inputs.reference_logprobs is not None
    apart = (inputs.logprobs - inputs.reference_logprobs).square().sum().item() / 2
    options: dict[str, Any] = {"kl_ctl": 0.5, "kl_estimator": "k2"}
    plain = own(root, "mine.py:tokens", True, **options)(inputs).total.item()
    held = own(root, "mine.py:tokens", True, **options, kl_in="loss")(inputs).total.item()
    assert held == pytest.approx(plain + 0.5 * apart)
    bonus = own(root, "mine.py:tokens", entropy_coef=0.1)(inputs).total.item()
    assert bonus == pytest.approx(plain - 0.1 * inputs.entropy.sum().item())


def test_a_function_that_takes_the_reference_adds_the_penalty_by_itself(root) -> None:
    inputs = example(True, torch.device("cpu"))
    actual = own(root, "mine.py:drawn_back", True, kl_ctl=0.5, kl_estimator="k2", kl_in="loss")(inputs)
    ours = actor_loss(
        config_of("ppo", kl_ctl=0.5, kl_estimator="k2", kl_in="loss"),
        SearchFolders(root, root),
        True,
        torch.device("cpu"),
    )
    assert actual.total.item() == pytest.approx(ours(inputs._replace(advantages=torch.zeros(5))).total.item())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "wants_more",
            "mine.py:wants_more cannot be called: missing a required argument: 'tau'; a loss is given logprobs,",
        ),
        (
            "no_gradient",
            "fails on a small example: what it returned has no gradient; compute it from logprobs",
        ),
        ("no_loss", "it returned dict; return a sum, the loss of each token, or a Loss"),
        ("wrong_shape", r"it returned a tensor of shape \[2\]"),
        ("not_finite", "returns -inf for a small example"),
        ("raises", r"fails on a small example: .*mine.py line \d+, in raises: NameError: name 'undefined'"),
        ("number", "mine.py:number cannot be used as a loss function"),
        (
            "of_mean",
            "mine.py:of_mean is not a sum over tokens: .* is 1 times as large, .*; return a sum, or the loss of",
        ),
        ("mean_by_token", "is not a sum over tokens"),
        ("mean_and_entropy", "is not a sum over tokens"),
        ("mean_of_answers", "is not a sum over tokens"),
        ("token", "has no token; did you mean tokens?"),
    ],
)
def test_invalid_losses_are_refused_before_the_first_step(root, name, message) -> None:
    with pytest.raises(ConfigError, match=rf"^actor\.loss: .*{message}"):
        own(root, f"mine.py:{name}")


@pytest.mark.parametrize("name", ["tokens", "weighted", "of_answers", "normalized", "warms_up", "noisy"])
def test_a_possible_sum_is_accepted_even_if_random_or_stateful(root, name) -> None:
    own(root, f"mine.py:{name}")


def test_a_loss_that_fails_later_ends_the_run_with_its_line(root) -> None:
    with pytest.raises(
        FinalFailure,
        match=r"^actor\.loss: .*mine.py:breaks_later failed: .*mine.py line \d+, in breaks_later: KeyError",
    ):
        step(root, f"actor.loss={root}/mine.py:breaks_later")


def test_a_loss_that_is_never_finite_is_named_before_the_learning_rate(root) -> None:
    overrides = (f"actor.loss={root}/mine.py:breaks_to_nan", "actor.optimizer.max_skipped_in_a_row=1")
    message = r"^actor\.loss, actor\.optimizer\.lr: 1 updates in a row .*mine.py:breaks_to_nan, your own loss"
    with pytest.raises(FinalFailure, match=message):
        step(root, *overrides)


def test_the_documented_loss_weighs_tokens_by_a_limited_detached_ratio() -> None:
    page = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(# cispo\.py\n.*?)```", page, flags=re.S)
    module: dict[str, Any] = {}
    exec(code, module)
    logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    gaps, ones = torch.tensor([1.0, 1.0, -0.1]), torch.ones(3)
    actual = module["cispo"](logprobs, logprobs.detach() - gaps, torch.tensor([1.0, -1.0, 1.0]), ones, ones)
    actual.total.backward()
    assert logprobs.grad is not None and logprobs.grad.tolist() == pytest.approx([-2, 2, -np.exp(-0.1)])
    assert actual.statistics.sums["limited"].item() == 2


def test_the_inputs_of_a_loss_match_the_checks_of_the_plan() -> None:
    assert set(LOSS_INPUTS) == {*Inputs._fields, "kl_ctl"}


@pytest.mark.parametrize("name", [name for name in LOSSES if not set(LOSS_KEYS) & set(loss_parameters(name))])
def test_the_file_of_a_built_in_loss_works_as_a_users_own(tmp_path, name) -> None:
    module = importlib.import_module(LOSSES[name].partition(":")[0])
    (tmp_path / "copied.py").write_text(Path(str(module.__file__)).read_text())
    inputs = example(False, torch.device("cpu"))
    built_in = actor_loss(config_of(name), SearchFolders(tmp_path, tmp_path), False, torch.device("cpu"))
    assert own(tmp_path, f"copied.py:{name}")(inputs).total.item() == built_in(inputs).total.item()


def test_tokens_without_advantage_are_skipped_if_the_loss_has_no_gradient_there() -> None:
    for loss, arguments, expected in (
        ("ppo", {}, False),
        ("sapo", {}, False),
        ("cispo", {}, False),
        ("dppo", {}, True),
        ("dppo", {"kl_tau": 0.0}, False),
    ):
        config = config_of(loss, loss_args=arguments)
        actual = actor_loss(config, SearchFolders(Path(), Path()), False, torch.device("cpu"))
        assert actual.needs_all == expected, (loss, arguments)


@pytest.mark.parametrize("name", LOSSES)
def test_a_built_in_loss_takes_inputs_keys_and_arguments_with_defaults(name) -> None:
    """As they are read in the source."""
    signature = inspect.signature(load_built_in("actor.loss", "actor.loss", name)).parameters
    parameters = loss_parameters(name)
    assert list(parameters) == list(signature)
    for each, parameter in parameters.items():
        default = signature[each].default
        assert parameter.default == ("" if default is inspect.Parameter.empty else repr(default))
        assert parameter.default or each in {*Inputs._fields, *LOSS_KEYS}
        assert not parameter.default or parameter.type in ("Positive", "NonNegative")
