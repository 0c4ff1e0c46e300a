"""`checkpoints/best`: which step is chosen."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from areal_like.config.benchmarks import best_clock
from areal_like.process.run import Run
from areal_like.rollout.settings import rollout_settings
from areal_like.serving.engines.external.command_line import ServerSite
from areal_like.serving.engines.sglang.command import sglang_command
from areal_like.serving.engines.vllm.command import vllm_command
from launcher.runs.best_checkpoint import Scored, best_of_steps, best_warning, model_card
from tests.support.planning import loaded, plan_of
from tests.support.rollout_world import grpo

LINES: list[dict[str, Any]] = [
    {"step": 0, "eval/score": 0.9},
    {"step": 2, "eval/score": 0.4},
    {"step": 4, "eval/score": 0.6},
    {"step": 6, "eval/score": 0.6},
    {"step": 8, "eval/score": None},
    {"step": 9, "eval/score": 0.8},
    {"step": 6, "eval/b/score": 0.1},
]


@pytest.mark.parametrize(
    ("metric", "mode", "step"),
    [("eval/score", "max", 4), ("eval/score", "min", 2), ("eval/b/score", "max", 6), ("eval/c/score", "max", None)],
)
def test_the_best_step_is_the_first_of_those_with_a_checkpoint(metric: str, mode: str, step: int | None) -> None:
    best = best_of_steps(LINES, metric, mode, [2, 4, 6, 8])
    assert (best and best.step) == step


def test_a_metric_that_was_never_logged_is_named_at_the_end(tmp_path: Path) -> None:
    config = grpo("saver.best.metric='eval/part/corect'")
    run = SimpleNamespace(directory=tmp_path, checkpoints=tmp_path / "none", config=config)
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 2, "eval/score": 0.4, "eval/part/correct": 0.1}\n')
    line = best_warning(cast(Run, run))
    assert line is not None and "eval/part/corect was never logged" in line and "mean eval/part/correct?" in line
    file.write_text('{"step": 2, "eval/score": 0.4, "eval/part/corect": null}\n')
    assert best_warning(cast(Run, run)) is None


def test_evaluated_steps_without_a_checkpoint_are_named_at_the_end(tmp_path: Path) -> None:
    run = SimpleNamespace(directory=tmp_path, checkpoints=tmp_path / "none", config=grpo("saver.best={}"))
    values = {0: 0.1, 4: 0.2, 7: 0.3}
    lines = [f'{{"step": {step}, "eval/score": {value}}}\n' for step, value in values.items()]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    assert best_warning(cast(Run, run)) == (
        "warning: saver.best: 2 evaluated steps have no checkpoint (4, 7) and cannot be the best"
    )


def test_evaluations_that_may_begin_late_are_a_warning() -> None:
    words = ("saver.best={}", "evaluator.freq_steps=5", "rollout.backend=embedded:d1")
    late = "uses later weights (evaluator.backend, actor.weight_update_mode=collective), which have no checkpoint"
    own, sent = "evaluator.backend=embedded:d1", "actor.weight_update_mode=collective"
    found = [plan_of("grpo", *words, *more).warnings for more in ((sent,), (own,), (own, sent))]
    assert [any(late in each for each in warnings) for warnings in found] == [False, False, True]


def test_without_an_evaluation_it_has_no_effect() -> None:
    warnings = plan_of("grpo", "saver.best={}", "evaluator.freq_steps=null").warnings
    assert [each for each in warnings if each.startswith("saver.best")]


@pytest.mark.parametrize(
    ("metric", "problem"),
    [
        ("eval/sum/score", "no benchmark is called sum; did you mean eval/sums/score?"),
        ("eval/sums", "eval/sums is a benchmark; did you mean eval/sums/score?"),
        ("eval/scores", "no evaluation has a metric scores; did you mean eval/score?"),
        ("eval/env/countdwn", "no environment is called countdwn; did you mean eval/env/countdown?"),
        ("eval/sums/scor", "no evaluation has a metric scor; did you mean eval/sums/score?"),
        ("eval/sums/part/x", ""),
        ("eval/sums/score", ""),
        ("eval/sums/pass@2", ""),
        ("eval/sums/pass@6_low", ""),
        ("eval/sums/pass@3", "eval/sums/pass@3 is given for no evaluation: each row has 6 answers (n_samples)"),
        ("eval/avg@6", "eval/avg@6 is given for no evaluation: each row has one answer (n_samples)"),
        ("eval/score_low", ""),
        ("eval/score", ""),
        ("eval/env/countdown", ""),
        ("eval/part/format", ""),
    ],
)
def test_the_metric_is_one_of_an_evaluation_that_there_is(metric: str, problem: str) -> None:
    items = "evaluator.benchmarks=[{name: sums, path: addition, freq_steps: 3, n_samples: 6}]"
    trained = (
        "environments.train=[{id: countdown}, {id: addition}]",
        "task.name=null",
        "train_dataset.path=''",
        "valid_dataset.path=''",
    )
    found = plan_of("grpo", f"saver.best.metric='{metric}'", items, *trained).cannot_start
    assert [each.message for each in found if each.key == "saver.best.metric"] == ([problem] if problem else [])


def test_each_evaluated_step_is_kept_and_has_one_version() -> None:
    config = grpo("saver.best={}", "evaluator.freq_steps=7")
    assert rollout_settings(config).evaluation_pin and best_clock(config).freq_steps == 7
    items = "evaluator.benchmarks=[{name: b, path: addition, freq_steps: 3}]"
    assert best_clock(grpo("saver.best.metric=eval/b/score", items)).freq_steps == 3


def words_of_the_card(folder: Path, *words: str) -> tuple[str, list[str]]:
    """The card, and the words of its line to serve."""
    config = grpo("saver.best={}", *words)
    run = SimpleNamespace(directory=folder, checkpoints=folder / "a b", config=config, experiment="grpo")
    card = model_card(cast(Run, run), Scored(4, 0.5))
    command, *rest = shlex.split(card.splitlines()[-1])
    assert (command, rest[:3], rest[-1]) == ("python", ["-m", "launcher", "--config"], "serve")
    return card, rest[4:-1]


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_the_line_of_the_card_renders_chats_as_the_evaluation_that_chose_it(tmp_path: Path, backend: str) -> None:
    benchmark = "evaluator.benchmarks=[{name: b, path: addition, freq_steps: 3, gconfig: {reasoning_effort: low}}]"
    given = "chat_template_args={enable_thinking: false, say: ['no', {limit: 5}]}"
    trained = (f"rollout.backend={backend}", given, benchmark)
    arguments = {"enable_thinking": False, "say": ["no", {"limit": 5}]}
    for metric, expected in (("eval/score", arguments), ("eval/b/score", {**arguments, "reasoning_effort": "low"})):
        card, words = words_of_the_card(tmp_path, *trained, f"saver.best.metric={metric}")
        assert f"(`chat_template_kwargs`): `{json.dumps(expected)}`" in card
        served = loaded("grpo", *words)
        assert served.config.chat_template_args == expected
        assert served.config.tokenizer_path == served.config.actor.path == str(tmp_path / "a b" / "best")
        make = {"vllm": vllm_command, "sglang": sglang_command}[backend]
        command = make(served.config, ServerSite(0, "", 0, "/r", "/m", True, 1, 1, (), "/env/bin/python")).command
        assert json.loads(command[command.index("--default-chat-template-kwargs") + 1]) == expected


@pytest.mark.parametrize(
    ("words", "engine", "precision"),
    [
        (("evaluator.backend=vllm:d1", "vllm.dtype=float16", "sglang.dtype=float16"), "vllm", {"dtype": "float16"}),
        (("evaluator.backend=auto", "embedded.dtype=bfloat16"), "embedded", {"dtype": "bfloat16"}),
        (("evaluator.backend=sglang", "sglang.kv_cache_dtype=fp8_e5m2"), "sglang", {"kv_cache_dtype": "fp8_e5m2"}),
        (
            ("rollout.backend=vllm.d1t2", "vllm.extra_args={kv-cache-dtype: fp8, quantization: fp8, max_logprobs: 5}"),
            "vllm",
            {"extra_args": {"kv-cache-dtype": "fp8", "quantization": "fp8"}},
        ),
        (("total_train_steps=0", "evaluator.backend=vllm:d1"), "embedded", {}),
    ],
)
def test_the_line_of_the_card_serves_by_the_engine_and_in_the_precision_of_the_evaluation(
    tmp_path: Path, words: tuple[str, ...], engine: str, precision: dict[str, Any]
) -> None:
    _, line = words_of_the_card(tmp_path, "rollout.backend=embedded:d1", *words)
    served = loaded("grpo", *line).config
    assert served.rollout.backend == engine
    assert precision.items() <= vars(getattr(served, engine)).items()


def test_the_line_of_the_card_goes_above_what_the_file_says(tmp_path: Path) -> None:
    written = ("vllm.dtype=bfloat16", "+vllm.extra_args.quantization=awq")
    _, line = words_of_the_card(
        tmp_path, "rollout.backend=vllm:d1", "vllm.dtype=float16", "+vllm.extra_args.quantization=fp8"
    )
    served = loaded("grpo", *written, *line).config
    assert (served.vllm.dtype, served.vllm.extra_args) == ("float16", {"quantization": "fp8"})


def test_the_card_of_a_run_without_variables_of_the_template_names_none(tmp_path: Path) -> None:
    card, words = words_of_the_card(tmp_path, "chat_template_args={}")
    assert "template" not in card and len(words) == 4
