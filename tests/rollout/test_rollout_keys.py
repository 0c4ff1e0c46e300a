"""Effects of the keys of sampling and of rollouts, from the command line to the engine and to the loop."""

import asyncio
import math
from typing import Any

import pytest
import torch

from areal_like.config.problems import ConfigError
from areal_like.data.datasets import load_datasets
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders
from areal_like.models import model_folder
from areal_like.observe.metrics import find_metric
from areal_like.process.identity import Identity
from areal_like.process.run import Run
from areal_like.rollout.episodes import main as episodes
from areal_like.rollout.groups import Result
from areal_like.rollout.settings import rollout_settings
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.engines.embedded.core.tokenizer import LazyTokenizer
from areal_like.serving.requests import GeneratedSample, parse_group
from tests.support.rollout_world import World, facts, grpo
from tests.support.tiny_models import VOCAB, tiny_qwen3

SMALL = ("train_dataset.batch_size=4", "rollout.max_head_offpolicyness=1", "evaluator.freq_steps=null")


def ring(*overrides: str, rows: int = 400, **more: Any) -> World:
    """The rollout loop of a configuration, with servers that have weights."""
    world = World(rollout_settings(grpo(*SMALL, *overrides)), rows=rows, **more)
    world.load_all()
    return world


# Sampling: what a lease says is what the engine does.


def sampled(*overrides: str) -> list[GeneratedSample]:
    """The answers to one lease's prompt by a small model with random weights."""
    world = ring("gconfig.max_new_tokens=8", "gconfig.temperature=1", *overrides)
    lease = world.lease()[0].wire(world.settings)
    group = {"id": lease["id"], "prompt": [7, 8, 9], "n": lease["n"], "seed": 5, "sampling": lease["sampling"]}
    tokenizer = LazyTokenizer(model_folder("builtin:tiny-addition"))
    engine = LLMEngine(tiny_qwen3(), max_running_requests=16, tokenizer=tokenizer)
    (finished,) = engine.generate([parse_group(group, VOCAB)])
    assert finished.error is None
    return finished.samples


@pytest.mark.shows("gconfig.n_samples")
@pytest.mark.parametrize("count", [2, 5])
def test_n_samples_is_the_number_of_answers(count):
    assert len(sampled(f"gconfig.n_samples={count}")) == count


@pytest.mark.shows("gconfig.max_new_tokens")
def test_max_new_tokens_cuts_an_answer_off():
    for most in (3, 6):
        lengths = {(len(sample.token_ids), sample.finish) for sample in sampled(f"gconfig.max_new_tokens={most}")}
        assert (most, "length") in lengths
        assert max(lengths)[0] == most


@pytest.mark.shows("gconfig.max_tokens")
def test_max_tokens_counts_the_prompt():
    samples = sampled("gconfig.max_tokens=8")
    assert max(len(sample.token_ids) for sample in samples) == 8 - 3


@pytest.mark.shows("gconfig.temperature")
def test_a_low_temperature_takes_likelier_tokens():
    means = {
        value: sum(sum(sample.logprobs) for sample in sampled(f"gconfig.temperature={value}")) for value in (1, 0.1)
    }
    assert means[1] < means[0.1] <= 0


@pytest.mark.shows("gconfig.greedy")
def test_greedy_takes_the_likeliest_token_always():
    answers = [{tuple(sample.token_ids) for sample in sampled(f"gconfig.greedy={value}")} for value in (True, False)]
    assert len(answers[0]) == 1 < len(answers[1])
    model, (answer,) = tiny_qwen3(), answers[0]
    with torch.no_grad():
        logits = model(torch.tensor([[7, 8, 9, *answer]])).logits[0, 2:-1]
    assert logits.argmax(-1).tolist() == list(answer)


@pytest.mark.shows("gconfig.stop_token_ids")
def test_stop_token_ids_end_an_answer():
    longest = max(sampled("gconfig.n_samples=1"), key=lambda sample: len(sample.token_ids)).token_ids
    place = next(index for index, token in enumerate(longest) if token not in longest[:index] and index > 0)
    (sample,) = sampled("gconfig.n_samples=1", f"gconfig.stop_token_ids=[{longest[place]}]")
    assert (sample.token_ids, sample.finish) == (longest[: place + 1], "stop")


def chances(sample: GeneratedSample) -> list[list[float]]:
    """Log-probabilities of all tokens at each position of the answer, at temperature 1, the likeliest first."""
    with torch.no_grad():
        logits = tiny_qwen3()(torch.tensor([[7, 8, 9, *sample.token_ids]])).logits[0, 2:-1]
    return torch.log_softmax(logits, -1).sort(descending=True).values.tolist()


def ranks(samples: list[GeneratedSample], at: str) -> list[int]:
    """How many tokens were likelier than each sampled one; `at` are the sampling parameters."""
    ranks = []
    with torch.no_grad():
        for sample in samples:
            logits = tiny_qwen3()(torch.tensor([[7, 8, 9, *sample.token_ids]])).logits[0, 2:-1]
            ranks += [int((row > row[token]).sum()) for row, token in zip(logits, sample.token_ids, strict=True)]
    assert ranks, at
    return ranks


MANY = "gconfig.n_samples=16"


@pytest.mark.shows("gconfig.top_k")
def test_top_k_leaves_out_all_but_the_likeliest():
    assert max(ranks(sampled(MANY), "plain")) >= 3
    assert max(ranks(sampled(MANY, "gconfig.top_k=3"), "top_k")) == 2
    assert max(ranks(sampled(MANY, "gconfig.top_k=0"), "top_k")) >= 3


@pytest.mark.shows("gconfig.top_p")
def test_top_p_excludes_tokens_beyond_its_share():
    def beyond(*words: str) -> int:
        """Tokens whose likelier ones have half of the probability together."""
        samples = sampled(MANY, *words)
        above = []
        for sample in samples:
            for row, rank in zip(chances(sample), ranks([sample], "top_p"), strict=True):
                above.append(sum(math.exp(value) for value in row[:rank]))
        return sum(share >= 0.5 for share in above)

    assert beyond() > 0 == beyond("gconfig.top_p=0.5")


def test_min_p_excludes_tokens_too_unlikely_relative_to_the_likeliest():
    def unlikely(*words: str) -> int:
        samples = sampled(MANY, *words)
        pairs = [
            (row[rank], row[0])
            for sample in samples
            for row, rank in zip(chances(sample), ranks([sample], "min_p"), strict=True)
        ]
        return sum(math.exp(chosen - best) < 0.2 for chosen, best in pairs)

    assert unlikely() > 0 == unlikely("gconfig.min_p=0.2")


def repeated(samples: list[GeneratedSample], before: tuple[int, ...] = ()) -> int:
    return sum(
        token in (*before, *sample.token_ids[:place])
        for sample in samples
        for place, token in enumerate(sample.token_ids)
    )


LONGER = ("gconfig.max_new_tokens=40", MANY)


@pytest.mark.shows("gconfig.frequency_penalty")
def test_frequency_penalty_makes_tokens_of_the_answer_rarer():
    counts = {value: repeated(sampled(*LONGER, f"gconfig.frequency_penalty={value}")) for value in (-1, 0, 2)}
    assert counts[2] < counts[0] < counts[-1]


@pytest.mark.shows("gconfig.repetition_penalty")
def test_repetition_penalty_makes_tokens_rarer_that_were_seen():
    counts = {value: repeated(sampled(*LONGER, f"gconfig.repetition_penalty={value}"), (7, 8, 9)) for value in (1, 5)}
    assert counts[5] < 0.8 * counts[1]


@pytest.mark.shows("gconfig.min_new_tokens")
def test_min_new_tokens_is_the_minimum_length_of_an_answer():
    ends = f"gconfig.stop_token_ids={list(range(2, VOCAB, 2))}"
    assert min(len(sample.token_ids) for sample in sampled(MANY, ends)) < 5
    lengths = [len(sample.token_ids) for sample in sampled(MANY, ends, "gconfig.min_new_tokens=4")]
    assert min(lengths) == 5


@pytest.mark.shows("gconfig.stop")
def test_stop_ends_an_answer_with_the_token_that_completes_a_text():
    tokenizer = TextTokenizer(model_folder("builtin:tiny-addition"))
    (longest,) = sampled("gconfig.n_samples=1")
    texts = [tokenizer.decode(longest.token_ids[:count]) for count in range(len(longest.token_ids) + 1)]
    text = texts[-1][1:3]
    end = next(count for count, piece in enumerate(texts) if text in piece)
    (sample,) = sampled("gconfig.n_samples=1", f"gconfig.stop=['{text}']")
    assert (sample.token_ids, sample.finish) == (longest.token_ids[:end], "stop")
    assert end < len(longest.token_ids)


@pytest.mark.shows("gconfig.seed")
def test_the_sampling_seed_determines_seeds_of_groups():
    seeds = {
        words: [lease.wire(world.settings)["seed"] for lease in world.lease()]
        for words in ((), ("seed=7",), ("gconfig.seed=7",), ("gconfig.seed=7", "seed=9"))
        for world in [ring(*words)]
    }
    assert seeds["seed=7",] == seeds["gconfig.seed=7",] == seeds["gconfig.seed=7", "seed=9"] != seeds[()]
    assert len(set(seeds[()])) == len(seeds[()]), "every group has different noise"


# Rollouts


@pytest.mark.shows("rollout.max_concurrent_rollouts")
def test_max_concurrent_rollouts_limits_running_groups():
    assert len(ring("rollout.max_concurrent_rollouts=3").lease()) == 3
    assert len(ring().lease()) == 4, "one batch by default"


@pytest.mark.shows("rollout.queue_size")
def test_queue_size_limits_waiting_and_running_groups():
    many = ("rollout.max_concurrent_rollouts=50", "rollout.max_head_offpolicyness=9")
    assert len(ring(*many).lease()) == 40
    assert len(ring(*many, "rollout.queue_size=6").lease()) == 6


@pytest.mark.shows("rollout.max_head_offpolicyness")
@pytest.mark.parametrize("staleness", [1, 3])
def test_max_head_offpolicyness_limits_how_far_ahead_groups_are_generated(staleness):
    many = ("rollout.max_concurrent_rollouts=500", f"rollout.max_head_offpolicyness={staleness}")
    assert len(ring(*many).lease()) == (staleness + 1) * 4


@pytest.mark.shows("async_training")
@pytest.mark.parametrize("enabled", [True, False])
def test_async_training_lets_groups_be_generated_ahead(enabled):
    world = ring("rollout.max_concurrent_rollouts=500", f"async_training={enabled}")
    world.lease()
    world.finish_all()
    world.fetch()
    assert bool(world.loop.ready) is enabled


@pytest.mark.shows("rollout.schedule_policy")
def test_schedule_policy_selects_the_next_server():
    """The second of four answers is long, so that its server has more load."""

    def servers(policy: str) -> list[str]:
        words = ("rollout.backend=embedded:d2", f"rollout.schedule_policy={policy}", "cluster.n_gpus_per_node=2")
        world = ring(*words, "rollout.max_concurrent_rollouts=8")
        first, second = world.lease(2)
        assert {first.server, second.server} == {"server/0", "server/1"}
        world.finish(first)
        (third,) = world.lease(1)
        world.finish(third)
        (fourth,) = world.lease(1)
        return [each.server for each in (first, third, fourth)]

    first, third, fourth = servers("round_robin")
    assert (third == first, fourth == first) == (True, False)
    first, third, fourth = servers("least_loaded")
    assert third == fourth == first


@pytest.mark.shows("rollout.request_retries")
@pytest.mark.parametrize("retries", [0, 2])
def test_request_retries_limits_retries_of_a_failed_group(retries):
    world = ring(f"rollout.request_retries={retries}", "rollout.max_concurrent_rollouts=1")
    names = []
    for _ in range(retries + 2):
        (lease,) = world.lease(1)
        names.append(lease.id)
        world.finish(lease, "failed", error="boom", error_kind="workflow")
    assert names == [*(f"0.{index + 1}" for index in range(retries + 1)), "1.1"]


@pytest.mark.shows("actor.dynamic_sampling")
@pytest.mark.parametrize("enabled", [True, False])
def test_dynamic_sampling_omits_groups_of_equal_rewards(enabled):
    world = ring(f"actor.dynamic_sampling={enabled}", "rollout.max_concurrent_rollouts=4")
    for lease in world.lease():
        world.finish(lease, rewards=[1.0] * lease.group.n if lease.group.number == 1 else None)
    batch = world.fetch()
    assert (batch is None) is enabled
    assert 1 not in world.loop.ready if enabled else [group.number for group in batch.groups] == [0, 1, 2, 3]


@pytest.mark.shows("rollout.consumer_batch_size")
def test_consumer_batch_size_must_be_the_batch_size():
    assert grpo("rollout.consumer_batch_size=64").rollout.consumer_batch_size == 64
    with pytest.raises(ConfigError, match=r"^rollout\.consumer_batch_size .* train_dataset\.batch_size is 64"):
        grpo("rollout.consumer_batch_size=3")


class Reached(Exception):
    """Raised where a worker starts to work."""


def worker_of(tmp_path, monkeypatch, *overrides: str) -> dict[str, Any]:
    """The arguments that an episodes worker is created with."""
    made: dict[str, Any] = {}

    class GenerationClient:
        def __init__(self, caller: Any, timeout_s: float, retries: int, another: Any) -> None:
            made.update(timeout_s=timeout_s, retries=retries)

        async def close(self) -> None:
            pass

    class ControllerClient:
        def __init__(self, caller: Any, me: Any, find: Any, limit_s: float) -> None:
            made.update(limit_s=limit_s)

        another_server = None

        async def post(self, path: str, body: Any) -> None:
            pass

    class EpisodeWorker:
        def __init__(self, controller: Any, runner: Any, max_in_flight: int) -> None:
            made.update(checks=runner.check_format, is_traced=runner.tools.is_traced)

        async def work(self) -> None:
            raise Reached

    for stand_in in (GenerationClient, ControllerClient, EpisodeWorker):
        monkeypatch.setattr(episodes, stand_in.__name__, stand_in)
    monkeypatch.setenv("AREAL_LIKE_TOKEN", "a secret")
    words = ("cluster.name_resolve.type=memory", "rollout.num_episode_workers=1", "reward.processes=1", *overrides)
    run = Run(tmp_path, grpo(*SMALL, *words), "grpo", "abc", tmp_path, tmp_path)
    with pytest.raises(Reached):
        asyncio.run(episodes._main(run, Identity("episodes", 0)))
    return made


def test_a_worker_traces_checks_retries_and_waits_as_configured(tmp_path, monkeypatch):
    """For the controller so long that one that hangs is replaced first, and its successor can start."""
    usual = worker_of(tmp_path, monkeypatch)
    assert usual == {"timeout_s": 3600, "retries": 3, "limit_s": 3780, "checks": False, "is_traced": False}
    limits = {"request_timeout": 7, "request_retries": 1, "setup_timeout": 9}
    words = [f"rollout.{name}={value}" for name, value in limits.items()]
    words += ["rollout.enable_rollout_tracing=true", "rollout.check_trajectory_format=true"]
    other = worker_of(tmp_path, monkeypatch, *words)
    assert other == {"timeout_s": 7, "retries": 1, "limit_s": 3669, "checks": True, "is_traced": True}


@pytest.mark.shows("rollout.oversampling_factor")
@pytest.mark.parametrize(("factor", "surplus"), [(1, 0), (1.25, 1), (1.3, 2), (2, 4)])
def test_oversampling_starts_a_multiple_of_the_missing_groups(factor, surplus):
    world = ring(f"rollout.oversampling_factor={factor}", "rollout.max_concurrent_rollouts=100")
    assert len(world.lease()) == 2 * 4 + surplus


def test_surplus_groups_go_into_the_next_batch_unless_they_are_stale():
    world = ring("rollout.oversampling_factor=2", "rollout.max_concurrent_rollouts=100")
    leases = world.lease()
    for lease in leases[4:]:
        world.finish(lease)
    assert [group.number for group in world.train().groups] == [4, 5, 6, 7]
    assert sorted(world.loop.ready) == [8, 9, 10, 11]
    assert [group.number for group in world.train().groups] == [8, 9, 10, 11]
    for lease in leases[:4]:
        world.finish(lease)  # of version 0, while batch 2 is next
    assert not world.loop.ready
    assert {event["reason"] for event in world.events if event["event"] == "dropped"} == {"stale"}


def agent_reports(*overrides: str) -> tuple[list[dict[str, float]], list[str]]:
    """Statistics of two steps whose trajectories had 1 and 4 turns, one of them a `cost`; and the warnings."""
    world = ring("gconfig.n_samples=2", *overrides)
    for _ in range(2):
        world.load_all()
        for lease in world.lease():
            samples = facts(world.step, [0.0, 1.0])
            samples[0]["metrics"], samples[1]["metrics"] = {"turns": 1.0, "a/b": 2.0, "cost": 0.5}, {"turns": 4.0}
            world.loop.finish(lease.worker, [Result(lease.id, "done", samples, b"blob")])
        world.train()
    prefix = "rollout/agent/"
    reports = [
        {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
        for _, values in world.reports
    ]
    return reports, world.loop.warnings


@pytest.mark.shows("actor.log_agent_stats", "actor.log_agent_stats_keys")
def test_agent_stats_are_logged_per_step_over_the_trajectories_that_have_them():
    keys = "actor.log_agent_stats_keys=[turns,cost,a/b]"
    reports, warnings = agent_reports("actor.log_agent_stats=true", keys)
    turns = {"turns/mean": 2.5, "turns/min": 1, "turns/max": 4}
    once = {f"{name}/{kind}": value for name, value in (("cost", 0.5), ("a/b", 2)) for kind in ("mean", "min", "max")}
    assert reports == [{**turns, **once}] * 2
    assert all(find_metric(f"rollout/agent/{name}") for name in reports[0])
    assert warnings == []
    assert agent_reports("actor.log_agent_stats=true", "actor.log_agent_stats_keys=[turns]")[0] == [turns, turns]
    assert agent_reports("actor.log_agent_stats=false", keys) == ([{}, {}], [])


def test_an_agent_stat_that_no_trajectory_has_gives_one_warning():
    reports, warnings = agent_reports("actor.log_agent_stats=true", "actor.log_agent_stats_keys=[calls]")
    assert reports == [{}, {}]
    (warning,) = warnings
    assert warning.startswith("actor.log_agent_stats_keys: no trajectory of batch 0 has 'calls' in its metrics")


@pytest.mark.parametrize("name", ["*", "a*", "/a", "a//b", ""])
def test_an_agent_stat_needs_a_name_that_can_be_logged(name):
    with pytest.raises(ConfigError, match=r"actor\.log_agent_stats_keys.*without \*"):
        grpo("actor.log_agent_stats=true", f'actor.log_agent_stats_keys=["{name}"]')


# Rows


def rows_of(tmp_path, section: str, *settings: str) -> Any:
    """Rows of a file for training or evaluation; the others are the task's."""
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1", "answer": "2"}\n{"prompt": "1+1+1=", "answer": "3"}\n')
    words = [f"{section}.{setting}" for setting in ("path=rows.jsonl", "drop_last=false", *settings)]
    config = grpo("train_dataset.batch_size=1", *words)
    datasets = load_datasets(
        config, SearchFolders(tmp_path, tmp_path), TextTokenizer(model_folder("builtin:tiny-addition"))
    )
    return datasets.train if section == "train_dataset" else datasets.valid


@pytest.mark.shows("{section}.path")
@pytest.mark.parametrize("section", ["train_dataset", "valid_dataset"])
def test_path_is_the_file_of_rows(tmp_path, section):
    assert [row["prompt"] for row in rows_of(tmp_path, section).rows] == ["1", "1+1+1="]
    assert len(rows_of(tmp_path, section, "path=addition")) > 1000


@pytest.mark.shows("{section}.max_length")
@pytest.mark.parametrize("section", ["train_dataset", "valid_dataset"])
def test_max_length_leaves_long_rows_out(tmp_path, section):
    rows = rows_of(tmp_path, section, "max_length=5").inspect([0, 1])
    assert [row.is_too_long for row in rows] == [False, True]


@pytest.mark.shows("{section}.type")
@pytest.mark.parametrize("section", ["train_dataset", "valid_dataset"])
def test_type_decides_the_required_fields_of_a_row(tmp_path, section):
    assert len(rows_of(tmp_path, section, "type=sft")) == 2
    with pytest.raises(ConfigError, match=rf"^{section}\.path: .*'chosen' is missing"):
        rows_of(tmp_path, section, "type=rw")


@pytest.mark.parametrize(
    "change",
    [
        "gconfig.temperature=0.3",
        "+chat_template_args.enable_thinking=false",
        "rollout.mask_env_responses=false",
        "rollout.trajectory_strategy=branching",
    ],
)
def test_what_makes_other_samples_of_finished_answers_is_known_when_a_run_is_resumed(change: str) -> None:
    assert rollout_settings(grpo(change)).answers != rollout_settings(grpo()).answers
    assert rollout_settings(grpo("rollout.max_concurrent_rollouts=7")).answers == rollout_settings(grpo()).answers
