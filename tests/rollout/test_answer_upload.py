"""The answers of a run are uploaded as a dataset to a Hub on this machine, by the command that a launcher runs."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from areal_like.process.run import open_run
from areal_like.rollout.decisions import Accept
from areal_like.rollout.evaluation.answer_files import AnswerFiles
from areal_like.rollout.evaluation.dataset_card import merged_card
from areal_like.rollout.evaluation.evaluation import Evaluation
from areal_like.rollout.groups import Group
from launcher.runs import answer_upload
from launcher.runs.answer_upload import HF, upload_answers
from tests.rollout.test_answer_files import done
from tests.support.planning import plan_of
from tests.support.ring_parts import write_run
from tests.support.rollout_world import evaluated
from tests.support.upload_hub import OWNER, UploadHub, upload_hub

pytest.importorskip("pyarrow")

TOKEN = "hf_of_this_test"
ON = "evaluator.save.hf.private=false"


def uploaded(root: Path, *overrides: str, hub: UploadHub, names: tuple[str, ...] = ("sums",)) -> str:
    """What is printed of the upload of two evaluations of each of `names`."""
    directory = write_run(root, *overrides)
    evaluate(directory, names)
    return upload_answers(HF, directory, {**os.environ, "HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN})


def evaluate(directory: Path, names: Sequence[str]) -> None:
    """Before the first step and after step 20, two answers to one row."""
    files = AnswerFiles(open_run(directory))
    for name in names:
        for version in (0, 20):
            rows = evaluated(name=name)
            one = Evaluation(rows, version, [Group(0, 40, 0, 2, version, evaluated=rows)])
            (group,) = one.take(1)
            one.apply(Accept(group, done("a", [1.0, version / 20])))
            files.complete(one)


@pytest.mark.shows("evaluator.save.hf.dataset_name", "evaluator.save.hf.private")
def test_the_dataset_has_the_name_of_the_key_else_that_of_the_run_and_is_private_if_wanted(tmp_path: Path) -> None:
    with upload_hub() as hub:
        printed = uploaded(tmp_path, "evaluator.save.hf.dataset_name=me/answers", hub=hub)
        assert printed == f"the answers of its evaluations are uploaded: {hub.address}/datasets/me/answers"
        assert set(hub.datasets) == {"me/answers"} and not hub.private and hub.tokens == {f"Bearer {TOKEN}"}
        (tmp_path / "other").mkdir()
        uploaded(tmp_path / "other", "evaluator.save.hf.private=true", hub=hub)
        assert hub.private == {f"{OWNER}/grpo-addition-t"}


@pytest.mark.shows("evaluator.save.hf.dataset_subset", "evaluator.save.hf.dataset_split")
def test_subsets_and_splits_have_the_names_of_the_keys_else_those_of_benchmarks_and_steps(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    cases = {
        (ON,): {"sums/step_000000.parquet", "sums/step_000020.parquet"},
        ("evaluator.save.hf.dataset_subset=mine",): {"mine/step_000000.parquet", "mine/step_000020.parquet"},
        ("evaluator.save.hf.dataset_split=evals",): {"sums/evals.parquet"},
    }
    for number, (words, expected) in enumerate(cases.items()):
        with upload_hub() as hub:
            root = tmp_path / str(number)
            root.mkdir()
            uploaded(root, *words, hub=hub)
            (files,) = hub.datasets.values()
            assert set(files) == {*expected, "README.md"}
            last = root / "last.parquet"
            last.write_bytes(files[sorted(expected)[-1]])
            assert parquet.read_table(last).column("score").to_pylist() == [1.0, 1.0], "those of step 20"
            split = sorted(expected)[-1].partition("/")[2].removesuffix(".parquet")
            assert f"  - split: {split}\n    path: {sorted(expected)[-1]}\n" in files["README.md"].decode()


OLD = """---
license: mit  # as agreed
configs:
- config_name: data
  data_files: data/*.parquet
- config_name: mine-sums
  data_files:
  - split: other
    path: mine-sums/other.parquet
tags: [sums]
---
# Sums

of all kinds
"""


def test_what_is_in_the_dataset_already_stays_and_several_subsets_begin_with_the_name(tmp_path: Path) -> None:
    with upload_hub() as hub:
        theirs = {"theirs/evals.parquet": b"PAR1", "data/train-00000-of-00001.parquet": b"PAR1"}
        hub.datasets["me/answers"] = {**theirs, "README.md": OLD.encode()}
        words = ("evaluator.save.hf.dataset_name=me/answers", "evaluator.save.hf.dataset_subset=mine")
        uploaded(tmp_path, *words, "evaluator.save.hf.dataset_split=evals", hub=hub, names=("sums", "more"))
        files = hub.datasets["me/answers"]
        tables = {"theirs/evals.parquet", "mine-sums/evals.parquet", "mine-more/evals.parquet"}
        assert set(files) == {*tables, *theirs, "README.md"} and files["theirs/evals.parquet"] == b"PAR1"
        text = files["README.md"].decode()
        assert text.startswith(
            "---\nlicense: mit  # as agreed\nconfigs:\n- config_name: data\n  data_files: data/*.parq"
        )
        assert text.endswith("tags: [sums]\n---\n# Sums\n\nof all kinds\n") and "train-0" not in text
        header = yaml.safe_load(text.split("---\n")[1])
        named = {each["config_name"]: each["data_files"] for each in header["configs"]}
        assert [each["split"] for each in named["mine-sums"]] == ["other", "evals"]
        assert {f"{name}/evals.parquet" for name in named if name != "data"} == tables


@pytest.mark.parametrize(
    ("there", "kept"),
    [("", ""), ("# Sums\n", "# Sums\n"), ("---\nlicense: mit\n---\ntext", "text"), ("---\nconfigs: []\n---\n", "")],
)
def test_a_card_without_subsets_gets_them(there: str, kept: str) -> None:
    text = merged_card(there, ["sums/step_000020.parquet"])
    files = [{"split": "step_000020", "path": "sums/step_000020.parquet"}]
    header = yaml.safe_load(text.split("---\n")[1])
    assert header["configs"] == [{"config_name": "sums", "data_files": files}]
    assert text.endswith(kept) and ("license: mit" in text) == ("license: mit" in there)
    assert merged_card(text, ["sums/step_000020.parquet"]) == text


def test_a_card_that_cannot_be_read_is_not_replaced() -> None:
    for header in ("a: [", "- a", "configs: 3"):
        with pytest.raises(ValueError, match=r"the header of the dataset's README.md is no"):
            merged_card(f"---\n{header}\n---\n", ["sums/step_000020.parquet"])


def test_an_upload_that_fails_is_told_with_the_command_that_repeats_it(tmp_path: Path) -> None:
    root = tmp_path / "my runs"
    root.mkdir()
    with upload_hub() as hub:
        hub.down = True
        printed = uploaded(root, ON, hub=hub)
    assert printed.startswith("evaluator.save.hf: the answers could not be uploaded (") and TOKEN not in printed
    assert printed.endswith(f"python -m areal_like.rollout.evaluation.answer_upload --run-dir '{root}/run'")


def test_a_start_without_a_login_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    (problem,) = plan_of("grpo", ON).problems
    assert problem.key == "evaluator.save.hf" and "set HF_TOKEN" in problem.message
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert plan_of("grpo", ON).problems == ()


def test_an_interrupted_upload_is_told_and_ends_nothing_else(tmp_path, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        monkeypatch.setattr(subprocess, "run", interrupted)
        printed = answer_upload.interruptible_upload(HF, tmp_path, {})
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert "could not be uploaded (it was interrupted); repeat it: python -m" in printed
