"""Any command line or file ends in an answer or one clear message, in bounded time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from areal_like.config.load import load
from areal_like.config.problems import ConfigError

GOOD = "experiment_name: e\nactor: {path: m}\n"


def refused(tmp_path: Path, text: str, *overrides: str, schema: str | None = None) -> str:
    file = tmp_path / "f.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load(file, overrides, schema)
    return str(raised.value)


def command(*words: str, **more: object) -> "subprocess.CompletedProcess[str]":
    done = [sys.executable, "-m", "launcher", *words]
    return subprocess.run(done, text=True, stderr=subprocess.PIPE, timeout=60, **more)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "launcher: {env: {'X$(touch y)': q}}", "is not a name of an environment variable"),
        (GOOD + "launcher: {env: {a: {b: 1}}}", "is not a string"),
        (GOOD + "gconfig: !foo {n_samples: 2}", "tag !foo is not supported"),
        (GOOD + "gconfig: !!set {n_samples}", "tag"),
        ("defaults: [b, b]\n" + GOOD, "'b' is listed twice"),
        (GOOD + "trial_name: " + "a" * 300, "at most 128 characters"),
        ("x: " + "y" * 6_000_000, "is larger than 5 MB"),
    ],
)
def test_a_hostile_file_is_one_message(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "b.yaml").write_text("seed: 2\n")
    assert message in refused(tmp_path, text)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("experiment=[ppo,sft]", "takes one kind, not a list"),
        ("+launcher.env.a.b=1", "holds single values, not mappings"),
        ("stats_logger.wandb.wandb_api_key='sk-abc,defghij", "check its quotes"),
        ("rollout.num_episode_workers=1000000", "out of range"),
    ],
)
def test_a_hostile_override_is_one_message(tmp_path: Path, override: str, message: str) -> None:
    text = refused(tmp_path, GOOD, override)
    assert message in text
    assert "defghij" not in text


def test_a_file_may_be_named_with_its_suffix_in_a_defaults_list(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("seed: 2\n")
    file = tmp_path / "f.yaml"
    file.write_text("defaults: [b.yaml]\n" + GOOD)
    assert load(file).get("seed") == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("class C(GRPOConfig):\n    a: int = 1", "must be a dataclass"),
        ("@dataclass\nclass C(BaseExperimentConfig):\n    a: int = 1", "must be a dataclass that extends one of"),
        ("@dataclass\nclass C(GRPOConfig):\n    a: int = 'x'", "the default of a: 'x' is not an integer"),
        ("@dataclass\nclass C(GRPOConfig):\n    actor: int = 5", "actor must stay a section"),
        ("@dataclass\nclass C(GRPOConfig):\n    defaults: int = 5", "a key cannot be called defaults"),
        ("@dataclass\nclass C(GRPOConfig):\n    def __post_init__(self): raise KeyError('mine')", "KeyError: 'mine'"),
        ("@dataclass\nclass C(GRPOConfig):\n    a: list = field(default_factory=lambda: 1 / 0)", "ZeroDivisionError"),
        ("@dataclass\nclass C(GRPOConfig):\n    a: set = None", "unsupported type"),
        ("raise SystemExit(7)", "cannot be imported: SystemExit"),
    ],
)
def test_an_unusable_user_schema_is_refused_with_the_reason(tmp_path: Path, body: str, message: str) -> None:
    module = tmp_path / "mine.py"
    imports = "from areal_like.config.experiment import BaseExperimentConfig, GRPOConfig\n"
    module.write_text(f"from dataclasses import dataclass, field\n{imports}{body}\n")
    assert message in refused(tmp_path, GOOD, schema=f"{module}:C")


def test_secrets_of_the_environment_are_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("experiment_name: e\nactor: {path: '${oc.env:HF_TOKEN}'}\nseed: 1\n")
    environment = {**os.environ, "HF_TOKEN": "hf_very_secret"}
    for words in (["--explain=actor.path"], ["--dry-run=json"], ["--cfg"], ["seed=${oc.env:HF_TOKEN}"]):
        done = command("--config", str(file), *words, env=environment, stdout=subprocess.PIPE)
        assert done.returncode in (0, 2), done.stderr
        assert "hf_very_secret" not in done.stdout + done.stderr


@pytest.mark.parametrize("words", [["--help"], ["--config", "grpo", "--dry-run"], ["--config", "grpo", "a=1"]])
def test_a_closed_output_gives_no_traceback(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = command(*words, stdout=full)
    assert "Traceback" not in done.stderr
    assert done.returncode == (2 if "a=1" in words else 1)
    closed = [sys.executable, "-m", "launcher", *words]
    script = subprocess.run(["bash", "-c", '"$@" >&-', "bash", *closed], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in script.stderr
    assert script.returncode == (2 if "a=1" in words else 0)


def test_a_path_that_is_too_long_is_no_traceback() -> None:
    done = command("--config", "grpo", f"actor.path=./{'a' * 300}", "--dry-run", stdout=subprocess.PIPE)
    assert done.returncode == 2
    assert "File name too long" in done.stderr
    assert "Traceback" not in done.stderr


def test_very_long_inputs_end_soon(tmp_path: Path) -> None:
    refused(tmp_path, GOOD + "".join(f"unknown_key_{index}: 1\n" for index in range(3000)))
    refused(tmp_path, GOOD + "zzz: " + "token_" * 4000 + "\n")
    done = command("--config", "grpo", "-m", "--dry-run", "seed=range(0,100000000000)", stdout=subprocess.PIPE)
    assert done.returncode == 2
    assert "more than 10000 values" in done.stderr


def test_messages_contain_no_control_characters(tmp_path: Path) -> None:
    text = refused(tmp_path, 'experiment_name: e\n"x\\e[31m\\u202e": 1\n')
    assert "\x1b" not in text
    assert "\u202e" not in text
