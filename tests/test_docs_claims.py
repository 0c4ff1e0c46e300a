"""A start refuses, accepts or reports the keys that the pages say it refuses, accepts or reports."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from functools import cache, partial
from importlib import import_module
from pathlib import Path

import pytest

from areal_like.config.built_in import BUILT_IN
from areal_like.config.describe.help import meaning
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.load import load
from areal_like.config.names import ALIASES
from areal_like.config.problems import ConfigError
from areal_like.config.schema import Schema
from launcher.plan.build import build_plan
from launcher.plan.plan import Plan
from tests.support.planning import ROOT, load_text, machine_with, plan_of

GENERATED = ("files.md", "keys.md", "metrics.md", "reference.md")
PAGES = {path.name: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}


class State(Enum):
    INVALID = auto()
    """Does not load."""
    REFUSED = auto()
    """Loads; a dry run lists the problem, and a start refuses it."""
    NO_EFFECT = auto()
    """Starts, and a warning names the key."""
    STARTS = auto()
    """Starts without a warning about the key."""


INVALID, REFUSED, NO_EFFECT, STARTS = State

OPENAI = "rollout.server_type=openai ; rollout.server_addresses=['h:1'] rollout.api_key_var=HOME"
LORA = "actor.weight_update_mode=adapter ; actor.use_lora=true"
ALLOWED = "rollout.allow_mismatched_sampling=true"
SAMPLING = (
    "gconfig.greedy=true gconfig.top_p=0.9 gconfig.top_k=5 gconfig.min_p=0.1 gconfig.frequency_penalty=0.1 "
    "gconfig.repetition_penalty=1.1 gconfig.min_new_tokens=2"
)
REMOVED_FLAGS = (
    "vllm.swap_space=8 vllm.max_seq_len_to_capture=100 ; rollout=vllm | sglang.enable_fast_load=true ; rollout=sglang"
)
TENSOR_AND_CONTEXT = "gpus=8 actor.backend=fsdp:d2t2 | gpus=8 actor.backend=fsdp:d2c2"
PIPELINE = "gpus=8 allocation_mode=vllm:d2p2+fsdp:d2 ; rollout.backend=auto"
SHARED_GPUS = "gpus=8 allocation_mode='sglang:d4|fsdp:d4' ; rollout.backend=auto"
IMAGES = "actor.path=Qwen/Qwen2-VL-7B | train_dataset.path=some/clevr"
TRACKERS = "stats_logger.wandb.mode=online stats_logger.swanlab.mode=cloud"
SERVICES = "scheduler.endpoint=x scheduler.deploy_mode=x scheduler.reward_model_path=x"
UNGUARDED = " ".join(f"+sglang.extra_args.{flag}=2" for flag in ("tokenizer_worker_num", "enable_http2", "grpc_port"))
MODES = " | ".join(f"actor.weight_update_mode={mode}" for mode in ("disk", "collective", "xccl", "nccl", "filesystem"))

CLAIMS: dict[str, dict[str, tuple[State, str]]] = {
    "README.md": {
        "features in them that are not built here, and a start refuses them": (REFUSED, "actor.model_impl=custom"),
        "Keys that are misspelt": (INVALID, "actor.eps_klip=0.1"),
        "the wrong type, out of range": (INVALID, "train_dataset.batch_size=x gconfig.n_samples=0"),
        "or contradictory are refused": (INVALID, "actor.group_size=3"),
    },
    "algorithms.md": {"must equal `gconfig.n_samples`, or be unset": (INVALID, "actor.group_size=3")},
    "configuration.md": {
        "Booleans**: only `true` or `false`. `yes`, `on` and `off` are": (
            INVALID,
            "gconfig.greedy=yes rollout.refill=on",
        ),
        "`t` and `c` are parsed, and refused at a start": (REFUSED, TENSOR_AND_CONTEXT),
        "`p` is parsed, and refused at a start": (REFUSED, PIPELINE),
        "parsed, so that files of AReaL load; refused": (REFUSED, "gpus=8 actor.backend=megatron:d2t2c2e2"),
        "on the same GPUs: refused": (INVALID, SHARED_GPUS),
        "a vision model, images in the data | loads; refused": (REFUSED, IMAGES),
        "keys that an engine has removed | load; the plan lists them": (NO_EFFECT, REMOVED_FLAGS),
    },
    "data.md": {
        "with `sft` and `rw` any other name is refused": (
            INVALID,
            "sft train_dataset.fields.strange=x | reward_model train_dataset.fields.strange=x",
        ),
        "For `rl` it may also map arguments of the reward": (STARTS, "train_dataset.fields.level=x"),
        "`train_dataset.num_workers` is accepted without effect": (NO_EFFECT, "train_dataset.num_workers=2"),
    },
    "differences.md": {
        "other values and unknown keys": (INVALID, "recover.mode=often gconfig.n_samples=0 | actor.engine=x"),
        "dimensions without a training engine are accepted": (
            STARTS,
            "gpus=8 allocation_mode=sglang.d4+d4 ; rollout.backend=auto | gpus=8 actor.backend=fsdp.d4",
        ),
        "given twice is an error": (INVALID, "gpus=8 allocation_mode=sglang:d2d2+fsdp:d4 ; rollout.backend=auto"),
        "(servers and trainers on the same GPUs) is refused": (INVALID, SHARED_GPUS),
        "more cores or memory than the machine has is refused": (REFUSED, "actor.backend=fsdp:d200"),
        "All six names are accepted": (STARTS, f"{MODES} | {LORA}"),
        "in `ref`, `critic` and `model` the key has no effect": (
            STARTS,
            "ppo ref.weight_update_mode=collective critic.weight_update_mode=collective"
            " | sft model.weight_update_mode=collective",
        ),
        "`train_dataset.num_workers` is accepted and has no effect": (NO_EFFECT, "train_dataset.num_workers=2"),
        "`valid_dataset.shuffle` and": (NO_EFFECT, "valid_dataset.shuffle=false"),
        "and `drop_last` are accepted": (NO_EFFECT, "valid_dataset.drop_last=true"),
        "`actor.pad_to_maximum` without `actor.mb_spec.max_tokens_per_mb` is an error": (
            INVALID,
            "actor.mb_spec.max_tokens_per_mb=null ; actor.pad_to_maximum=true",
        ),
        "A tracker whose package or API key is missing refuses the start": (REFUSED, TRACKERS),
        "A start refuses it when set": (REFUSED, SERVICES),
        "flags newer engines have removed are still accepted": (NO_EFFECT, REMOVED_FLAGS),
        "`sglang.torchao_config`, which is refused": (REFUSED, "sglang.torchao_config=int8wo ; rollout=sglang"),
        "`gconfig.temperature` is at least 0.001": (INVALID, "gconfig.temperature=0.0005"),
        "`gconfig.repetition_penalty` at least 0.01": (INVALID, "gconfig.repetition_penalty=0.001"),
        "exceed 1,000,000": (INVALID, "gconfig.temperature=1000001 gconfig.repetition_penalty=1000001"),
        "**Sampling that the trainer cannot reproduce**": (REFUSED, SAMPLING),
        "`rollout.allow_mismatched_sampling: true` allows it": (STARTS, f"{SAMPLING} ; {ALLOWED}"),
        "A temperature of 0 does not load": (INVALID, f"gconfig.temperature=0 ; {ALLOWED}"),
        "one answer per prompt with a group baseline": (REFUSED, "gconfig.n_samples=1"),
        "rows of another `type` than the experiment takes": (REFUSED, "train_dataset.type=sft"),
        "more minibatches than samples": (REFUSED, "actor.ppo_n_minibatches=100000"),
        "a trainer that needs more than data parallelism": (REFUSED, TENSOR_AND_CONTEXT),
        "takes no weights (`rollout.server_type: openai`) in a run that trains": (REFUSED, OPENAI),
        "(A group size that is not `gconfig.n_samples` does not load.)": (INVALID, "actor.group_size=3"),
        "several nodes (`cluster.n_nodes`) with `cluster.type: local`": (REFUSED, "cluster.n_nodes=2"),
        "GPUs, an engine, a package or a model": (REFUSED, "cluster.n_gpus_per_node=8 | actor.path=/no/model"),
    },
    "reference.md": {
        "a dry run shows it, a start is refused": (REFUSED, "cluster.type=slurm | cluster.type=ray"),
        "No effect: the processes of the run read the rows themselves": (NO_EFFECT, "train_dataset.num_workers=2"),
        "A start refuses other values than the default: SGLang no longer quantizes": (
            REFUSED,
            "sglang.torchao_config=int8wo ; rollout=sglang",
        ),
        "No effect: vLLM has removed the flag": (NO_EFFECT, REMOVED_FLAGS),
        "a start with a changed key is refused": (REFUSED, SERVICES),
        "what it cannot reproduce is refused in training": (REFUSED, SAMPLING),
    },
    "serving.md": {
        "(`openai`) cannot be used for training": (REFUSED, OPENAI),
        "For every engine, training refuses": (REFUSED, f"{SAMPLING} | {SAMPLING} ; rollout=vllm"),
        "and are always allowed": (STARTS, "gconfig.stop_token_ids=[1] gconfig.stop=[a]"),
        "(`attention_backend: fa3`) are refused": (REFUSED, "sglang.attention_backend=fa3 ; rollout=sglang"),
        "`grpc_port` and the like) are refused": (REFUSED, f"{UNGUARDED} ; rollout=sglang"),
        "goes up to 2": (REFUSED, f"gconfig.repetition_penalty=2.5 ; rollout=sglang {ALLOWED}"),
        "`stop` together with `min_new_tokens` is refused": (
            REFUSED,
            f"gconfig.stop=[a] ; gconfig.min_new_tokens=3 rollout=sglang {ALLOWED}",
        ),
        "does not have that mode and the key is refused": (REFUSED, "gconfig.seed=3 ; rollout=sglang"),
        "with a seed of your own the plan turns it on, on a GPU": (STARTS, "gpus=4 gconfig.seed=3 ; rollout=sglang"),
        "`min_p` is refused with a seed": (
            REFUSED,
            f"gpus=4 gconfig.min_p=0.1 ; gconfig.seed=3 rollout=sglang {ALLOWED}",
        ),
        "`q_proj` and `v_proj` only together": (
            REFUSED,
            f"actor.target_modules=[q_proj] ; rollout=sglang {LORA.replace(' ;', '')}",
        ),
    },
    "status.md": {
        "Clusters are planned and refused at a start": (REFUSED, "cluster.type=slurm | cluster.type=ray"),
        "`cluster.n_nodes` above 1 is refused": (REFUSED, "cluster.n_nodes=2"),
        "trainers with tensor or context parallelism": (REFUSED, TENSOR_AND_CONTEXT),
        "pipeline and expert parallelism does not load": (
            INVALID,
            "gpus=8 actor.backend=fsdp:d2p2 | gpus=8 actor.backend=fsdp:d2e2",
        ),
        "servers with pipeline parallelism": (REFUSED, PIPELINE),
        "`actor.debug.num_layers` is refused in a run that starts servers": (REFUSED, "actor.debug.num_layers=1"),
        "**Vision models and images** are refused by their names": (REFUSED, IMAGES),
        "`actor.optimizer.type` has no such choice": (INVALID, "actor.optimizer.type=adam_8bit"),
        "`workflow.name` refuses other names": (INVALID, "workflow.name=several_turns"),
        "with `rollout.server_type: openai`) are refused": (REFUSED, OPENAI),
    },
    "trackers.md": {"A missing package or API key is an error": (REFUSED, TRACKERS)},
    "weights.md": {
        "random first weights (`actor.init_from_scratch`)": (INVALID, f"{LORA} actor.init_from_scratch=true"),
        "cannot carry `actor.lora_modules_to_save`": (INVALID, f"{LORA} actor.lora_modules_to_save=[lm_head]"),
    },
}
"""Page -> quoted words -> what happens to the keys before `;`, with the settings behind it; `|` separates cases."""

FILES = {
    "keys of an example's subclass": (INVALID, "n_trajs", "n_trajs: 4\nactor: {path: builtin:tiny-addition}"),
    "a section `megatron`, or": (REFUSED, "model.megatron", "model: {path: a/b, megatron: {ddp: {}}}"),
    "no reward, no workflow | known from the name": (
        REFUSED,
        "reward.name",
        "actor: {path: a/b}\ntrain_dataset: {path: a/c}",
    ),
    "a file for realhf": (INVALID, "", "mode: local\nexp_ctrl: {}"),
}
"""Words of configuration.md -> what happens to the key in a file of AReaL."""

OF_RUNS = {
    "configuration.md": ("columns that AReaL's loaders rename",),
    "differences.md": ("A new run does not continue a W&B run with the same id",),
    "running.md": (
        "**With `recover.mode=disabled`, the default, it does not resume",
        "`recover.mode=resume` is refused where there is no checkpoint to go on from",
        "but with `resume=RUN` or `recover.mode=resume` it is refused",
    ),
    "trackers.md": ("W&B refuses a *new* run whose id exists already",),
}
"""Sentences about what happens in a run, which other tests show."""


@cache
def text_of(page: str) -> str:
    """Without blocks of code and the tables that are made from the checks."""
    text = re.sub(r"^```.*?^```", "", PAGES[page].read_text(encoding="utf-8"), flags=re.S | re.M)
    return re.sub(r"<!-- [^>]*, written by `make docs` -->.*?<!-- end of [^>]* -->", "", text, flags=re.S)


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def sentences(page: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-|]|\d\.) )", text_of(page)):
        yield from re.split(r"(?<=[.;:]) (?=[A-Z`*])", in_one_line(block))


def states(keys: list[str], plan: Callable[[], Plan]) -> dict[str, tuple[State, str]]:
    """Key -> its state, and the messages."""
    try:
        made = plan()
    except ConfigError as error:
        reported = {each.key for problem in error.problems for each in (problem, *problem.follows)}
        return {key: (INVALID if key in reported else STARTS, str(error)) for key in keys}
    result = {}
    for key in keys:
        problems = [f"{problem.key}: {problem.message}" for problem in made.problems]
        warnings = [warning for warning in made.warnings if warning.startswith(f"{key}: ")]
        if any(problem.startswith(f"{key}: ") for problem in problems):
            result[key] = REFUSED, "\n".join(problems)
        elif any("no effect" in warning for warning in warnings):
            result[key] = NO_EFFECT, "\n".join(warnings)
        else:
            result[key] = STARTS, "\n".join(problems + warnings)
    return result


@cache
def states_of(case: str) -> dict[str, tuple[State, str]]:
    """Of the keys before `;`. The case may begin with a kind of experiment and a number of GPUs."""
    claimed, _, settings = case.partition(";")
    words = claimed.split()
    experiment = words.pop(0) if words[0] in EXPERIMENTS else "grpo"
    gpus = int(words.pop(0).removeprefix("gpus=")) if words[0].startswith("gpus=") else 0
    keys = [word.lstrip("+").partition("=")[0] for word in words]
    return states(keys, partial(plan_of, experiment, *words, *settings.split(), gpus=gpus))


@pytest.fixture(autouse=True)
def no_api_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "SWANLAB_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("page", "quote"), [(page, quote) for page, quotes in CLAIMS.items() for quote in quotes])
def test_a_pages_statement_about_a_key_is_true(page: str, quote: str) -> None:
    assert quote in in_one_line(text_of(page)), "no longer on the page: quote the sentence as it is now, or remove it"
    expected, cases = CLAIMS[page][quote]
    for case in cases.split(" | "):
        for key, (state, messages) in states_of(case).items():
            assert state is expected, f"{case}: {key} is {state.name}, and the page says {expected.name}\n{messages}"
            assert state is not STARTS or not messages, f"{case}\n{messages}"


@pytest.mark.parametrize("quote", FILES)
def test_a_pages_statement_about_an_areal_file_is_true(quote: str) -> None:
    assert quote in in_one_line(text_of("configuration.md"))
    expected, key, text = FILES[quote]

    def plan() -> Plan:
        return build_plan(load_text(f"experiment_name: x\n{text}\n"), host=machine_with())

    if key:
        assert states([key], plan)[key][0] is expected
    else:
        with pytest.raises(ConfigError, match="realhf"):
            plan()


def test_files_of_prime_rl_are_refused(tmp_path: Path) -> None:
    assert "**Files of prime-rl** (TOML) are refused." in text_of("status.md")
    file = tmp_path / "mine.toml"
    file.write_text("max_steps = 3\n")
    with pytest.raises(ConfigError, match="is TOML"):
        load(file)


def test_values_that_the_table_of_differences_calls_refused_do_not_load() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \|.*refused.*\|$", text_of("differences.md"), flags=re.M)
    assert len(rows) > 30
    check_other_values(rows)


def test_values_that_help_texts_call_refused_do_not_load() -> None:
    schemas = [Schema.of(cls) for cls in EXPERIMENTS.values()]
    keys = {
        path
        for schema in schemas
        for path, key in schema.keys.items()
        if re.search(r"nother value (than that of \S+ )?is refused", meaning(key))
    }
    assert {"actor.temperature", "sglang.model_path", "saver.trial_name"} <= keys
    check_other_values(keys)


def check_other_values(keys: Iterable[str]) -> None:
    """No other value of them loads. All are set at once, those of an engine where it serves."""
    left = set(keys)
    for experiment, *settings in (
        ["grpo", "rollout=vllm"],
        ["grpo", "rollout=sglang"],
        *([name] for name in EXPERIMENTS),
    ):
        schema = Schema.of(EXPERIMENTS[experiment])
        idle = {"embedded", "vllm", "sglang"} - {settings[0].removeprefix("rollout=") if settings else "embedded"}
        here = sorted(key for key in left & set(schema.keys) if key.partition(".")[0] not in idle)
        words = [f"{key}={'other' if schema.keys[key].kind.name == 'str' else 7}" for key in here]
        result = states(here, partial(plan_of, experiment, *settings, *words))
        assert {key: state.name for key, (state, _) in result.items()} == dict.fromkeys(here, "INVALID"), result
        left -= set(here)
    assert not left


@pytest.mark.parametrize("page", sorted(set(PAGES) - set(GENERATED)))
def test_every_sentence_about_a_refused_key_is_checked(page: str) -> None:
    """A sentence with a claim and the full name of a key."""
    known = {name for cls in EXPERIMENTS.values() for name in Schema.of(cls).names() if "." in name} | set(ALIASES)
    checked = (*CLAIMS.get(page, ()), *OF_RUNS.get(page, ()), *(FILES if page == "configuration.md" else ()))
    for sentence in sentences(page):
        claims = re.search(
            r"\brefuse|not built|(no|without) effect|\bignore|\bnot read\b|\bis accepted|are accepted", sentence
        )
        keys = known & set(re.findall(r"`([a-z_.]+)[`=:]", sentence))
        in_table = page == "differences.md" and sentence.startswith("| `")
        if claims and keys and not in_table:
            assert any(quote in sentence for quote in checked), f"no claim of this test: {sentence}"


def test_the_page_on_rewards_has_a_row_for_each_built_in_reward_and_no_other():
    table = PAGES["rewards.md"].read_text().partition("| reward | right is | arguments |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| ?([^|]*?) ?\|$", table, flags=re.M))
    assert sorted(rows) == sorted(BUILT_IN["reward"])
    for name, arguments in rows.items():
        module, _, thing = BUILT_IN["reward"][name].partition(":")
        parameters = inspect.signature(getattr(import_module(module), thing)).parameters
        named = re.findall(r"`(\w+)=[^`]*`|`(\w+)`", arguments)
        assert {one for one, _ in named} <= {*parameters, ""}, name
        assert {other for _, other in named} <= {*parameters, "", "true", "words"}, name


def test_the_table_of_promises_says_which_tests_are_slow() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    table = text.partition("## Promises and their tests\n")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if "`tests/" in line]
    assert len(rows) > 20
    for row in rows:
        slow = [file for file in re.findall(r"`(tests/[^`]+)`", row) if "mark.slow" in (ROOT / file).read_text()]
        assert ("slow" in row) == bool(slow), f"{row}: {', '.join(slow) or 'none'} with slow tests"
