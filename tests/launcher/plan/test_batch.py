"""The numbers of a training step, as values and as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.checks.epochs import data_end_text
from tests.support.planning import loaded, plan_of

EIGHT = ("gconfig.n_samples=8",)


def batch_of(*overrides, experiment="grpo", gpus=0):
    return plan_of(experiment, *overrides, gpus=gpus).batch


def test_prompts_samples_and_updates():
    batch = batch_of("train_dataset.batch_size=32", "gconfig.n_samples=4", "actor.ppo_n_minibatches=2")
    assert (batch.prompts_per_step, batch.samples_per_step, batch.optimizer_steps_per_step) == (32, 128, 2)
    assert batch.samples_per_optimizer_step == 64
    assert batch.words[0].startswith("a step trains on 32 prompts x 4 samples = 128 samples")
    assert "2 optimizer steps, each on 64 samples" in batch.words[1]


def test_an_uneven_split_is_marked():
    batch = batch_of("train_dataset.batch_size=5", "gconfig.n_samples=2", "actor.ppo_n_minibatches=4")
    assert "about 2.5 samples" in batch.words[1]


def test_data_parallel_ranks_share_a_step():
    batch = batch_of("actor.backend=fsdp:d2t2", "train_dataset.batch_size=32", "gconfig.n_samples=4", gpus=8)
    assert batch.data_parallel_ranks == 2
    assert "about 64 on each of 2 data-parallel ranks" in batch.words[0]


@pytest.mark.parametrize(("staleness", "ahead"), [(1, 128), (2, 192), (8, 576)])
def test_the_staleness_limit_bounds_how_far_generation_runs_ahead(staleness, ahead):
    batch = batch_of(f"rollout.max_head_offpolicyness={staleness}", "train_dataset.batch_size=64")
    assert (batch.staleness_bound, batch.max_prompts_ahead) == (staleness, ahead)
    text = " ".join(batch.words)
    assert "asynchronous" in text
    assert f"{ahead} prompts ahead" in text


@pytest.mark.parametrize("how", ["rollout.max_head_offpolicyness=0", "async_training=false"])
def test_synchronous_training_has_no_staleness(how):
    batch = batch_of(how, "train_dataset.batch_size=64")
    assert (batch.staleness_bound, batch.max_prompts_ahead) == (0, 64)
    assert any(word.startswith("synchronous") for word in batch.words)


def test_tokens_of_a_micro_batch():
    assert batch_of("actor.mb_spec.max_tokens_per_mb=10240").max_tokens_per_micro_batch == 10240
    assert "10,240 tokens" in " ".join(batch_of("actor.mb_spec.max_tokens_per_mb=10240").words)
    assert "no limit" in " ".join(batch_of().words)


def test_a_prompt_limit_bounds_a_sample():
    batch = batch_of("train_dataset.max_length=100", "gconfig.max_new_tokens=50", "gconfig.max_tokens=1000")
    assert batch.max_tokens_per_sample == 150
    assert batch.max_tokens_per_step == 150 * batch.samples_per_step


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        (["total_train_steps=7"], 7),
        (["total_train_steps=null", "total_train_n_seqs=1000", "train_dataset.batch_size=10", *EIGHT], 13),
        (["total_train_steps=null"], None),
    ],
)
def test_the_plan_shows_when_the_run_ends(overrides, steps):
    batch = batch_of(*overrides)
    assert batch.total_steps == steps
    assert batch.words[-1].startswith("the run ends after")


def test_each_conversation_of_a_sample_counts_in_a_step():
    batch = batch_of("train_dataset.batch_size=10", *EIGHT, "workflow.name=multi_turn", "+workflow.args.n_trajs=2")
    assert (batch.samples_per_prompt, batch.samples_per_step) == (16, 160)
    assert (
        "10 prompts x 16 samples = 160 samples (train_dataset.batch_size x gconfig.n_samples x n_trajs)"
        in batch.words[0]
    )


def test_supervised_training_counts_rows_and_has_no_staleness():
    batch = batch_of("train_dataset.batch_size=24", experiment="sft")
    assert (batch.prompts_per_step, batch.samples_per_step, batch.optimizer_steps_per_step) == (24, 24, 1)
    assert batch.staleness_bound is None


def test_a_pair_is_two_sequences():
    batch = batch_of("train_dataset.batch_size=24", experiment="reward_model")
    assert batch.samples_per_step == 48
    assert "24 pairs = 48 sequences" in batch.words[0]


def test_fake_data_have_their_own_size():
    batch = batch_of("train_dataset.fake.batch_size=3", "train_dataset.fake.seq_len=10", experiment="sft")
    assert (batch.samples_per_step, batch.max_tokens_per_step) == (3, 30)


def test_too_few_samples_for_the_ranks_is_a_warning():
    few = ("train_dataset.batch_size=2", "gconfig.n_samples=2", "actor.ppo_n_minibatches=4")
    plan = plan_of("grpo", *few, "actor.backend=fsdp:d4", gpus=8)
    assert any(warning.startswith("train_dataset.batch_size:") for warning in plan.warnings)


def test_an_answer_that_fits_into_no_micro_batch_is_a_warning():
    plan = plan_of("grpo", "actor.mb_spec.max_tokens_per_mb=128", "gconfig.max_new_tokens=256")
    assert any(warning.startswith("actor.mb_spec.max_tokens_per_mb:") for warning in plan.warnings)


@given(st.integers(1, 512), st.integers(1, 64), st.integers(0, 8))
def test_the_numbers_of_a_step_are_consistent(prompts, samples, staleness):
    from launcher.plan.batch import plan_batch
    from tests.support.planning import loaded

    config = loaded("grpo").config
    keep = config.train_dataset.batch_size, config.gconfig.n_samples, config.rollout.max_head_offpolicyness
    try:
        config.train_dataset.batch_size = config.rollout.consumer_batch_size = prompts
        config.gconfig.n_samples, config.rollout.max_head_offpolicyness = samples, staleness
        batch = plan_batch(config, None)
    finally:
        config.train_dataset.batch_size = config.rollout.consumer_batch_size = keep[0]
        config.gconfig.n_samples, config.rollout.max_head_offpolicyness = keep[1:]
    assert batch.samples_per_step == prompts * samples
    assert batch.samples_per_optimizer_step * batch.optimizer_steps_per_step == batch.samples_per_step
    assert batch.max_prompts_ahead == (staleness + 1) * prompts


def test_singular_and_plural_are_correct():
    one = (
        "train_dataset.batch_size=1",
        "gconfig.n_samples=1",
        "rollout.max_head_offpolicyness=0",
        "total_train_steps=1",
    )
    text = " ".join(batch_of(*one).words)
    assert "1 prompt x 1 sample = 1 sample (" in text
    assert "1 prompt at once" in text
    assert "1 sample: before" in text
    assert "trains on 1 row (" in batch_of("train_dataset.batch_size=1", experiment="sft").words[0]
    (warning,) = (
        warning
        for warning in plan_of("grpo", *one[:2], "actor.backend=fsdp:d2", gpus=4).warnings
        if warning.startswith("train_dataset.batch_size:")
    )
    assert "1 sample for 2 ranks x 1 optimizer step are" in warning


def early(*words, experiment="grpo"):
    return [line for line in plan_of(experiment, *words).warnings if line.startswith("total_train_epochs")]


def test_too_few_rows_for_the_steps_name_the_epochs_to_set():
    few = ("total_train_steps=400", "total_train_epochs=1", "train_dataset.batch_size=32")
    messages = (
        "total_train_epochs: is 1, which ends the run after 251 steps, before total_train_steps=400; "
        "set total_train_epochs=2"
    )
    assert early(*few) == [messages]
    assert early(*few, "total_train_epochs=2") == early(*few, "+task.args.digits=3") == []
    assert early(*few, "total_train_n_seqs=320") == [] and messages not in early(*few, "bench=true")
    assert all(early(experiment=name) == [] for name in ("grpo", "ppo", "sft", "reward_model"))
    assert data_end_text(loaded("grpo", *few), 251) == messages and data_end_text(loaded("grpo", *few), 400) is None


def test_a_task_with_few_rows_and_one_of_a_package_end_no_later_than_the_plan_says():
    few = ("total_train_epochs=1", "train_dataset.batch_size=10")
    (warning,) = early("task=programs", "total_train_steps=490", *few)
    assert warning.startswith("total_train_epochs: is 1, which ends the run after 274 steps")
    least, more = (end("task=reasoning_gym", f"total_train_steps={steps}", *few) for steps in (75, 90))
    assert least.endswith("before 1 epoch of the data, at least 75 steps")
    assert more.endswith("or after 1 epoch of the data, whichever comes first")


@pytest.mark.parametrize(("most", "drops"), [(42, True), (64, False)])
def test_a_plan_says_where_the_limit_may_drop_rows_of_a_task(most, drops):
    limit = f"train_dataset.max_length={most}"
    told = end("task=word_problems", "total_train_steps=9", limit)
    assert told.endswith("unless train_dataset.max_length drops rows") is drops
    template = "train_dataset.prompt_template='solve: {prompt}'"
    assert end("task=word_problems", "total_train_steps=9", limit, template).endswith("drops rows")


def end(*words, experiment="grpo"):
    return plan_of(experiment, *words).batch.words[-1]


def test_a_plan_shows_in_steps_which_end_comes_first():
    few = ("total_train_steps=400", "total_train_epochs=1", "train_dataset.batch_size=32")
    data = "the run ends after 1 epoch of the data (total_train_epochs)"
    assert end(*few) == f"{data}: 251 steps, before the 400 of total_train_steps"
    assert end(*few, "total_train_steps=null") == f"{data}: 251 steps"
    dropped = end(*few, "train_dataset.max_length=8")
    assert dropped == f"{data}: at most 251 steps, before the 400 of total_train_steps", "max_length drops rows"
    more = "the run ends after 400 steps (total_train_steps), 102,400 samples: before 2 epochs of the data, 502 steps"
    assert end(*few, "total_train_epochs=2") == more
    few = ("total_train_steps=9", *few[1:])
    steps = "the run ends after 9 steps (total_train_steps), 2,304 samples"
    assert end(*few) == f"{steps}: before 1 epoch of the data, 251 steps"
    assert end(*few, "train_dataset.max_length=8").endswith(", unless train_dataset.max_length drops rows")
    unknown = f"{steps}, or after 1 epoch of the data, whichever comes first"
    assert end(*few, "+task.args.digits=3") == unknown, "the rows are not counted"


def test_the_rows_of_a_file_are_counted(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a", "answer": "b"}\n' * 10)
    words = (
        f"train_dataset.path={file}",
        "valid_dataset=null",
        "task.name=null",
        "train_dataset.batch_size=4",
        "total_train_steps=9",
    )
    (messages,) = early(*words, "total_train_epochs=2", experiment="sft")
    assert "after 4 steps" in messages and messages.endswith("set total_train_epochs=5")
    assert (
        "after 6 steps" in early(*words, "total_train_epochs=2", "train_dataset.drop_last=false", experiment="sft")[0]
    )
