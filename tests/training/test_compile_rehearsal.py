"""Layers are compiled only where a rehearsal shows that this works and gives the same numbers; else they run as they
are, and a warning says why."""

import contextlib
import logging
import re
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.utils import make_boxed_func

from areal_like.config.problems import ConfigError
from areal_like.config.sections.train_engine import ActivationCheckpointingConfig, CompileConfig, FSDPEngineConfig
from areal_like.process.identity import TOKEN
from areal_like.training import compile_rehearsal, main, torch_compile
from areal_like.training.attention_kernels import Capability
from areal_like.training.compile_rehearsal import Unequal, compare, distances, one_of_each_kind
from areal_like.training.engine import TrainEngine
from areal_like.training.rank_vote import RankVote
from areal_like.training.sequences import MicroBatch, Sequences
from tests.support.training_runs import ME, make_engine, make_run, model_folder, section, weights_of, world
from tests.training.test_engine import mean_loss, tokens

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
"""torch's compiler looks at it, for all inputs."""

Backend = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]
NAME = torch_compile.__name__
AUTO, REQUIRED = section(CompileConfig, required=False), section(CompileConfig)


@pytest.fixture
def compiling(monkeypatch) -> Callable[[Callable[[nn.Module], Callable[..., Any]]], None]:
    """Sets what takes the place of a compiled layer."""

    def choose(made_of: Callable[[nn.Module], Callable[..., Any]]) -> None:
        def take(layer: nn.Module, **how: Any) -> None:
            assert how["dynamic"], "lengths differ"
            vars(layer)["_compiled_call_impl"] = made_of(layer)

        monkeypatch.setattr(nn.Module, "compile", take)

    monkeypatch.setattr(torch_compile, "has_compiler", lambda: True)
    monkeypatch.setattr(torch._dynamo.config, "suppress_errors", False)
    monkeypatch.setattr(functorch_config, "force_non_lazy_backward_lowering", False)
    choose(as_it_is)
    return choose


@pytest.fixture
def capturing(compiling, monkeypatch) -> Iterator[Callable[[Backend | str], None]]:
    """Sets what captured graphs are turned into; a real compiler takes half a minute."""
    monkeypatch.undo()
    usual = nn.Module.compile

    def choose(backend: Backend | str) -> None:
        monkeypatch.setattr(nn.Module, "compile", lambda *given, **how: usual(*given, **how, backend=backend))

    monkeypatch.setattr(torch_compile, "has_compiler", lambda: True)
    monkeypatch.setattr(torch._dynamo.config, "suppress_errors", False)
    monkeypatch.setattr(functorch_config, "force_non_lazy_backward_lowering", False)
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", torch._dynamo.config.recompile_limit)
    torch._dynamo.reset()
    counters.clear()
    choose("eager")
    yield choose
    torch._dynamo.reset()


def as_it_is(layer: nn.Module) -> Any:
    return layer._call_impl


def fail(*_: Any, **__: Any) -> Any:
    raise RuntimeError("Failed to find C compiler.\n\nSet it.")


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.clone()

    backward = fail


FAILURES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "forward": (fail, "layers cannot be compiled .RuntimeError: Failed to find C compiler. Set it."),
    "backward": (FailsBackward.apply, "layers cannot be compiled .RuntimeError: Failed to find C compiler. Set it."),
    "wrong": (lambda out: out * 1.01, "do not compute what uncompiled ones do .output: off by 0.01, more than 0.0002"),
    "not finite": (lambda out: out * torch.nan, "do not compute what uncompiled ones do .output: off by nan"),
}


def changed(by: Callable[[Tensor], Tensor]) -> Callable[[nn.Module], Callable[..., Any]]:
    return lambda layer: lambda *given, **more: by(layer._call_impl(*given, **more))


def cut(lengths: list[int]) -> MicroBatch:
    ids = np.random.default_rng(len(lengths)).integers(0, 40, sum(lengths)).astype(np.int32)
    return Sequences(ids, ids >= 0, np.array(lengths)).micro_batch(range(len(lengths)), world().device)


def learn(engine: TrainEngine) -> Tensor:
    """Losses, norms and log-probabilities of two steps, and the weights after them."""
    made: list[Tensor] = []
    for step, lengths in enumerate(([3, 9, 2], [11, 11])):
        made += engine.logprobs([cut(lengths)], 1.0)
        update = engine.step(step, engine.accumulate([tokens(step), cut(lengths)], mean_loss))
        made.append(torch.tensor([update.loss, update.grad_norm]))
    return torch.cat([tensor.flatten() for tensor in (*made, *weights_of(engine).values())])


@pytest.mark.slow
def test_rehearsed_layers_are_compiled_once_for_training_and_once_for_evaluation(tmp_path, capturing, caplog):
    folder = model_folder(tmp_path, "qwen3")
    usual = learn(make_engine(folder))
    with caplog.at_level(logging.INFO):
        engine = make_engine(folder, compile=AUTO)
    assert engine.compiled is not None and engine.compiled.num == 2
    assert "actor.compile: layers are compiled; a rehearsal of 1 kind took" in caplog.text

    torch.testing.assert_close(learn(engine), usual, atol=1e-5, rtol=1e-4)
    assert counters["stats"]["unique_graphs"] == 2, "the layers use the graphs of the rehearsal"


@pytest.mark.parametrize(("failure", "again"), [(failure, failure == "backward") for failure in FAILURES])
def test_layers_that_cannot_be_compiled_run_as_they_are(tmp_path, compiling, caplog, failure, again):
    by, reason = FAILURES[failure]
    compiling(changed(by))
    folder = model_folder(tmp_path, "qwen3")
    usual = learn(make_engine(folder, gradient_checkpointing=again))
    engine = make_engine(folder, gradient_checkpointing=again, compile=AUTO)

    assert engine.compiled is not None and engine.compiled.num == 0
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING and record.name == NAME]
    assert warning.getMessage().startswith("actor.compile: ") and "layers run uncompiled" in warning.getMessage()
    assert re.search(reason, warning.getMessage()), warning.getMessage()
    assert engine.step(0, engine.accumulate([tokens()], mean_loss)).compiled_layers == 0
    assert torch.equal(learn(make_engine(folder, gradient_checkpointing=again, compile=AUTO)), usual)


@pytest.mark.parametrize("value", [AUTO, REQUIRED])
def test_a_rank_that_could_compile_its_layers_does_what_the_others_do(tmp_path, compiling, caplog, monkeypatch, value):
    there = "actor.compile: layers cannot be compiled (no compiler there)"
    monkeypatch.setattr(RankVote, "gather", lambda _, text, what: [text, there])
    with pytest.raises(ConfigError, match="no compiler there") if value.required else contextlib.nullcontext():
        engine = make_engine(model_folder(tmp_path, "qwen3"), compile=value)
        assert engine.compiled is not None and engine.compiled.num == 0 and there in caplog.text


@pytest.mark.parametrize("failure", FAILURES)
def test_compiling_that_is_asked_for_and_fails_is_an_error(tmp_path, compiling, failure):
    by, reason = FAILURES[failure]
    compiling(changed(by))
    with pytest.raises(ConfigError, match=rf"^actor\.compile: .*{reason}.*set actor\.compile=null"):
        make_engine(model_folder(tmp_path, "qwen3"), compile=REQUIRED)


@pytest.mark.slow
@pytest.mark.parametrize("passes", ["forward", "backward"])
def test_what_cannot_be_compiled_after_the_rehearsal_runs_uncompiled(tmp_path, capturing, caplog, passes):
    works = [True]

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        if works[0] or passes == "backward":
            fine = lambda made, _: make_boxed_func(made.forward)  # noqa: E731
            return aot_autograd(fw_compiler=fine, bw_compiler=fine if works[0] else fail)(graph, inputs)
        return fail()

    capturing(backend)
    torch_compile.fall_back_later(SimpleNamespace(model=SimpleNamespace(compile=AUTO)))
    folder = model_folder(tmp_path, "qwen3")
    usual = learn(make_engine(folder))
    engine = make_engine(folder, compile=AUTO)
    torch._dynamo.reset()
    works[0] = False
    torch.testing.assert_close(learn(engine), usual, atol=1e-5, rtol=1e-4)
    assert "actor.compile: torch runs some of the layers' code uncompiled" in caplog.text


@pytest.mark.slow
def test_too_many_graphs_of_a_layer_run_uncompiled_with_a_warning(tmp_path, capturing, caplog, monkeypatch):
    engine = make_engine(model_folder(tmp_path, "qwen3"), compile=AUTO)
    expected = engine.logprobs([tokens()], 1.0)[0]
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 2)
    engine.module.train()
    assert engine.compiled is not None
    with torch.no_grad(), engine.compiled.watched():  # a combination that no step has
        assert torch.equal(engine.module(tokens(), 1.0, False)[0], expected)
    engine.accumulate([tokens()], mean_loss)
    assert "uncompiled, after 2 graphs or an error" in caplog.text
    caplog.clear()
    engine.accumulate([tokens()], mean_loss)
    assert "uncompiled" not in caplog.text


@pytest.mark.parametrize("passes", ["evaluation", "training"])
def test_the_warning_names_the_model_whose_code_runs_uncompiled(tmp_path, compiling, caplog, passes):
    """torch counts for a process, which has several models."""

    def refused(out: Tensor) -> Tensor:
        counters["frames"]["total"] += has_begun[0]
        return out

    has_begun = [0]
    folder = model_folder(tmp_path, "qwen3")
    other = make_engine(folder, compile=AUTO)
    compiling(changed(refused))
    engine = TrainEngine(replace(other.config), "ref", folder, world(), seed=1)
    has_begun[0] = 1
    engine.logprobs([tokens()], 1.0) if passes == "evaluation" else engine.accumulate([tokens()], mean_loss)
    other.logprobs([tokens()], 1.0)
    other.step(0, other.accumulate([tokens()], mean_loss))
    warnings = [record.getMessage() for record in caplog.records if record.name == NAME]
    assert [warning.partition(":")[0] for warning in warnings] == ["ref.compile"], warnings


def test_a_backward_pass_has_the_settings_of_the_compiler(tmp_path):
    """torch keeps them per thread, and on a GPU would compute what is recomputed in another one."""
    engine, is_elsewhere = make_engine(model_folder(tmp_path, "qwen3")), []

    def loss(micro: MicroBatch, logprobs: Tensor, entropy: Tensor | None) -> Tensor:
        logprobs.register_hook(lambda _: is_elsewhere.append(torch._C._is_multithreading_enabled()))
        return -logprobs.mean()

    engine.accumulate([tokens()], loss)
    assert is_elsewhere == [False] and torch._C._is_multithreading_enabled()


@pytest.mark.parametrize("must", [False, True])
def test_later_errors_are_left_to_torch_only_if_no_model_must_be_compiled(tmp_path, compiling, monkeypatch, must):
    """torch knows one answer for a process."""
    monkeypatch.setenv(TOKEN, "a secret")
    monkeypatch.setattr("areal_like.training.world.open_world", fail)
    keys = {"actor.kl_ctl": 0.1, "actor.compile.required": str(must).lower(), "ref.compile.required": "false"}
    run = make_run(tmp_path, "grpo", *(f"{key}={value}" for key, value in keys.items()))
    with pytest.raises(RuntimeError, match="Failed to find"):
        main.main(run, ME)
    assert torch._dynamo.config.suppress_errors is not must
    assert functorch_config.force_non_lazy_backward_lowering is not must


def test_an_error_of_the_compiler_in_a_step_names_the_key():
    config = SimpleNamespace(model=SimpleNamespace(compile=REQUIRED))
    failure = torch_compile.compile_failure(torch._dynamo.exc.FailOnRecompileLimitHit("too\n many"), config)
    assert str(failure) == (
        "model.compile: layers cannot be compiled (FailOnRecompileLimitHit: too many); set model.compile=null"
    )
    assert torch_compile.compile_failure(RuntimeError("of something else"), config) is None


@pytest.mark.parametrize(
    ("kind", "lacking", "why"), [("qwen3", True, "needs a C++ compiler"), ("gemma2", False, "support capped scores")]
)
def test_what_the_compiler_lacks_is_a_warning_unless_layers_must_be_compiled(
    tmp_path, compiling, caplog, monkeypatch, kind, lacking, why
):
    monkeypatch.setattr(torch_compile, "has_compiler", lambda: not lacking)
    folder = model_folder(tmp_path, kind)
    usual = learn(make_engine(folder))
    assert torch.equal(learn(make_engine(folder, compile=AUTO)), usual)
    assert why in caplog.text and "layers run uncompiled" in caplog.text


def test_a_layer_that_cannot_be_computed_alone_is_compiled_only_if_asked_for(tmp_path, compiling, caplog, monkeypatch):
    folder = model_folder(tmp_path, "qwen3")
    monkeypatch.setattr(compile_rehearsal, "layer_calls", fail)
    why = "a layer cannot be computed by itself (RuntimeError: Failed to find C compiler."
    caplog.set_level(logging.INFO, NAME)
    for value, num in ((AUTO, 0), (REQUIRED, 2)):
        caplog.clear()
        engine = make_engine(folder, compile=value)
        assert engine.compiled is not None and engine.compiled.num == num and why in caplog.text
        assert "rehearsal of 0" not in caplog.text


def test_layers_that_need_a_graph_for_each_micro_batch_are_not_compiled(tmp_path, compiling, caplog, monkeypatch):
    def counted(out: Tensor) -> Tensor:
        counters["stats"]["unique_graphs"] += 1
        return out

    compiling(changed(counted))
    engine = make_engine(model_folder(tmp_path, "qwen3"), compile=AUTO)
    assert engine.compiled is not None and engine.compiled.num == 0
    assert "another graph for other lengths" in caplog.text


@pytest.mark.parametrize(
    ("kind", "settings", "num"),
    [
        ("gemma3", {}, 2),
        ("deepseek_v3", {}, 2),
        ("llama", {"fsdp": section(FSDPEngineConfig, load_using_meta=True)}, 1),
        ("qwen3", {"use_lora": True}, 1),
        ("qwen3", {"dtype": "bfloat16", "gradient_checkpointing": True}, 1),
        (
            "qwen3",
            {
                "gradient_checkpointing": True,
                "activation_checkpointing": section(ActivationCheckpointingConfig, freq=2),
            },
            2,
        ),
        ("qwen3_moe", {"dtype": "bfloat16"}, 1),
        ("qwen3", {"is_critic": True}, 1),
        ("qwen3", {"optimizer": None}, 1),
    ],
)
def test_one_layer_of_each_kind_is_rehearsed(tmp_path, compiling, caplog, kind, settings, num):
    with caplog.at_level(logging.INFO):
        engine = make_engine(model_folder(tmp_path, kind), compile=AUTO, **settings)
    assert f"a rehearsal of {num} kind" in caplog.text, caplog.text
    assert engine.compiled is not None and engine.compiled.num == 2
    layers: Any = engine.model.base_model.layers
    assert len(one_of_each_kind(layers)) == num
    assert not any("forward" in vars(layer) for layer in layers)


def test_a_rehearsal_changes_neither_weights_nor_random_numbers(tmp_path, compiling):
    folder = model_folder(tmp_path, "qwen3")
    before = weights_of(make_engine(folder))
    torch.manual_seed(5)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    engine = make_engine(folder, compile=AUTO)
    assert torch.equal(torch.rand(3), drawn)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights_of(engine).items())
    assert all(parameter.grad is None for parameter in engine.parameters)


def test_results_may_differ_as_much_as_rounding_changes_them():
    right = {"output": torch.ones(4), "gradient of bias": torch.full((4,), 1e-6)}
    near = {"output": torch.ones(4) * 1.0001, "gradient of bias": torch.zeros(4)}
    still = dict.fromkeys(right, 0.0)
    compare(near, right, still, 2e-4)
    far = near | {"output": torch.ones(4) * 1.01}
    with pytest.raises(Unequal, match=r"output: off by 0\.01, more than 0\.0002"):
        compare(far, right, still, 2e-4)
    compare(far, right, distances(right | {"output": torch.ones(4) * 1.005}, right), 2e-4)
    with pytest.raises(Unequal, match="only one has a output"):
        compare({"gradient of bias": near["output"]}, right, still, 2e-4)


def test_a_rehearsal_holds_two_results_at_a_time_and_nothing_after_it(tmp_path, compiling, monkeypatch):
    """All gradients of a large layer are gigabytes."""
    results, held = compile_rehearsal._results, [0]
    kept: list[weakref.ref[Any]] = []

    def counted(layer: nn.Module, *given: Any) -> dict[str, Tensor]:
        found = results(layer, *given)
        kept.extend((weakref.ref(layer), *(weakref.ref(tensor) for tensor in found.values())))
        held.append(sum(isinstance(each(), Tensor) for each in kept) // len(found))
        return found

    monkeypatch.setattr(compile_rehearsal, "_results", counted)
    engine = make_engine(model_folder(tmp_path, "qwen3"), compile=AUTO)
    assert engine.compiled is not None and engine.compiled.num == 2
    assert len(held) == 1 + 3 * 3 and max(held) == 2
    assert not any(each() is not None for each in kept)


@pytest.mark.slow
def test_a_frozen_model_runs_the_graphs_of_its_rehearsal(tmp_path, capturing):
    """Its weights need no gradient in either."""
    engine = make_engine(model_folder(tmp_path, "qwen3"), compile=AUTO, optimizer=None)
    rehearsed = counters["stats"]["unique_graphs"]
    engine.logprobs([tokens()], 1.0)
    assert counters["stats"]["unique_graphs"] == rehearsed > 0


@pytest.mark.slow
def test_recomputation_calls_what_is_compiled_and_hooks_of_sharding_stay_outside(tmp_path, capturing):
    """In the forward pass and in the backward pass, each within the hooks."""
    ran: list[str] = []

    def noting(graph: torch.fx.GraphModule, _: list[Any]) -> Any:
        names = {str(node.target) for node in graph.graph.nodes}
        assert not any("fsdp" in name.lower() or "checkpoint" in name.lower() for name in names), names

        def run(*given: Any) -> Any:
            ran.append("graph")
            return graph(*given)

        return run

    capturing(noting)
    engine = make_engine(model_folder(tmp_path, "qwen3"), compile=AUTO, gradient_checkpointing=True)
    ran.clear()
    layers: Any = engine.model.base_model.layers
    with contextlib.ExitStack() as hooks:
        handle = layers[0].register_forward_pre_hook(lambda *_: ran.append("layer"))
        hooks.callback(handle.remove)
        loss: Tensor = engine.accumulate([tokens()], mean_loss)
    assert loss.isfinite() and ran.count("graph") == 4 and ran.count("layer") == 2


@pytest.mark.parametrize(
    ("every_kernel", "has_cudnn", "batches"), [(True, True, 9), (False, True, 3), (True, False, 3)]
)
def test_kernels_that_few_micro_batches_need_are_rehearsed_where_layers_must_be_compiled(
    monkeypatch, every_kernel, has_cudnn, batches
):
    given = []

    def layer_calls(model, layers, kinds, micros):
        given.extend(micros)
        return [[] for _ in kinds]

    monkeypatch.setattr(compile_rehearsal, "layer_calls", layer_calls)
    monkeypatch.setattr(compile_rehearsal, "capability", lambda device: Capability(9, has_cudnn, has_flash_3=False))
    trial = compile_rehearsal.Trial(
        shard=lambda layer: layer,
        compile=lambda layer: None,
        forward_context=contextlib.nullcontext(),
        trains=True,
        every_kernel=every_kernel,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )
    model: Any = nn.Linear(1, 1)
    compile_rehearsal.rehearse(model, [model], trial)
    assert len(given) == batches
