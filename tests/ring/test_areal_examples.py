"""AReaL's example files run as they are: only the sizes, the model and the place of the run are overridden.

Datasets come from a Hub on this machine; what AReaL's scripts decide in Python (columns, prompt, reward) is known from
the dataset's name.
"""

import json

import pytest
import yaml

from areal_like.rollout.evaluation.answer_folders import read_answers
from tests.config.areal_files.expected import SUBCLASS_FILES
from tests.ring.start import run
from tests.support import areal_examples as examples
from tests.support.commands import AREAL
from tests.support.model_hub import hub

GSM8K = ("openai/gsm8k", examples.gsm8k)
SMALL = (
    "allocation_mode=auto",
    "cluster.n_gpus_per_node=auto",
    "cluster.n_nodes=1",
    "train_dataset.batch_size=4",
    "total_train_steps=2",
)
ANSWERS = ("gconfig.max_new_tokens=8", "actor.dtype=float32")
FILES = {"data/countdown/qwen": ("train_e.jsonl", "valid_e.jsonl"), "torl_data": ("train.parquet", "test.parquet")}
"""Folder -> the files in it, in the run's working directory. The example has `torl_data` at an absolute path."""
SLOW = pytest.mark.slow


def example(name, *words, data=GSM8K, slow=True):
    return pytest.param(name, words, data, id=name, marks=SLOW if slow else ())


EXAMPLES = [
    example("grpo", "valid_dataset.batch_size=4", slow=False),
    example("dapo", "actor.overlong_tokens=4"),
    example("drgrpo"),
    example("grpo_deprecated"),
    example("liteppo"),
    example("lora"),
    example("gsm8k_ppo", slow=False),
    example("reinforce"),
    example("reinforce_baseline"),
    example("rloo", "cluster.name_resolve.type=nfs", "actor.attn_impl=auto"),
    example("multi_turn_math", "max_turns=3", slow=False),
    example(
        "tir_math",
        "train_dataset.path=torl_data/train.parquet",
        "valid_dataset.path=torl_data/test.parquet",
        data=("torl_data", examples.torl),
    ),
    example("boba_vllm", data=("inclusionAI/AReaL-boba-Data", examples.boba)),
    example("countdown", data=("data/countdown/qwen", examples.countdown)),
    example("sft", "stats_logger.wandb.mode=disabled", slow=False),
    example("hhrlhf_rw", data=("Anthropic/hh-rlhf", examples.hh_rlhf), slow=False),
]


def write_rows(file, make):
    text = examples.lines(make)
    if file.suffix == ".parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist([json.loads(line) for line in text.splitlines()]), file)
    else:
        file.write_text(text)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return examples.write_chat_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(("name", "words", "data"), EXAMPLES)
def test_an_example_of_areal_trains(tmp_path, model, name, words, data):
    path, make = data
    rows = tmp_path / "rows"
    rows.mkdir()
    for split in ("train", "test"):
        (rows / f"{split}.jsonl").write_text(examples.lines(make))
    for file in FILES.get(path, ()):
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
        write_rows(tmp_path / path / file, make)
    schema = ("--schema", SUBCLASS_FILES[name][0]) if name in SUBCLASS_FILES else ()
    trained = "model" if name in ("sft", "hhrlhf_rw") else "actor"
    answers = ANSWERS if trained == "actor" else ("model.dtype=float32",)
    own = (
        f"{trained}.path={model}",
        "evaluator.num_examples=4",
        f"cluster.name_resolve.nfs_record_root={tmp_path}/names",
    )
    with hub(rows, kind="datasets", name=path) as server:
        words = (*SMALL, *answers, *own, *words, *schema)
        config, cache = str(AREAL / f"{name}.yaml"), str(tmp_path / "hub")
        done = run(tmp_path, *words, config=config, HF_ENDPOINT=server.address, HF_HUB_CACHE=cache, HF_HUB_OFFLINE="0")
    assert done.code == 0, done.text
    assert len(done.metric("train/loss")) == 2
    if trained == "actor":
        rewards = done.metric("reward/mean")
        assert len(rewards) == 2 and all(0 <= each <= 1 for each in rewards)
        resolved = yaml.safe_load((done.directory / "config.yaml").read_text())
        assert resolved["reward"]["name"] == ("countdown" if name == "countdown" else "math")
    if name == "multi_turn_math":
        assert done.metric("rollout/conversations") == [8, 8], "two of each prompt (n_trajs)"
        assert done.metric("rollout/samples") == [8 * each for each in done.metric("rollout/turns_mean")]
        assert max(done.metric("rollout/turns_max")) == 3
    record = json.loads((done.directory / "data.json").read_text())
    assert record["train_dataset"]["rows"] == examples.NUM_ROWS


@SLOW
def test_the_evaluation_script_of_areal_takes_the_same_file_and_an_allocation_without_trainer(tmp_path, model):
    """`gsm8k_eval.py --config gsm8k_grpo.yaml allocation_mode=sglang.d4p1t1+eval`."""
    rows = tmp_path / "rows"
    rows.mkdir()
    for split in ("train", "test"):
        (rows / f"{split}.jsonl").write_text(examples.lines(examples.gsm8k))
    small = ("allocation_mode=embedded:d1+eval", "cluster.n_gpus_per_node=auto", "rollout.setup_timeout=600", *ANSWERS)
    own = (f"actor.path={model}", f"cluster.name_resolve.nfs_record_root={tmp_path}/names")
    with hub(rows, kind="datasets", name=GSM8K[0]) as server:
        config, cache = str(AREAL / "grpo.yaml"), str(tmp_path / "hub")
        more = {"HF_ENDPOINT": server.address, "HF_HUB_CACHE": cache, "HF_HUB_OFFLINE": "0"}
        done = run(tmp_path, *small, *own, config=config, limit_s=900, **more)
    assert done.code == 0, done.text
    answers = read_answers(done.directory / "evaluations/step_000000/valid.jsonl")
    assert [each["row"] for each in answers] == list(range(examples.NUM_ROWS)) and all("score" in a for a in answers)
    assert not list((done.directory / "logs").glob("trainer*"))
