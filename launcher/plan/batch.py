"""Sizes of a training step: prompts, samples, optimizer steps, tokens and staleness."""

from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import generates, only_evaluates
from areal_like.config.conversations import conversations_per_sample
from areal_like.config.experiment import GRPOConfig
from areal_like.config.problems import plural
from areal_like.observe.throughput import WARM_UP_STEPS
from launcher.checks.epochs import DataSteps
from launcher.plan.bench import BENCH_STEPS
from launcher.plan.lengths import longest_sample
from launcher.plan.plan import BatchPlan

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


def plan_batch(
    config: "BaseExperimentConfig", allocation: Allocation | None, data: DataSteps | None = None
) -> BatchPlan:
    """All sizes of a step, as numbers and as text. `data`: the steps of all epochs, where the rows are counted."""
    ranks = allocation.actor.data if allocation and allocation.actor else 1
    if only_evaluates(config):
        return _with_words(_rollout_batch(config, ranks, data), evaluation_words(config))
    if generates(config):
        return _rollout_batch(config, ranks, data)
    return _dataset_batch(config, ranks, data)


def evaluation_words(config: GRPOConfig) -> list[str]:
    """What is evaluated."""
    evaluator = config.evaluator
    parts = [("valid_dataset", evaluator.num_examples, evaluator.n_samples)] if config.valid_dataset is not None else []
    parts += [(each.name, each.num_examples, each.n_samples or evaluator.n_samples) for each in evaluator.benchmarks]
    return [
        f"{name}: {'all rows' if rows < 0 else 'at most ' + plural(rows, 'row')}, {plural(samples, 'answer')} each"
        for name, rows, samples in parts
    ]


def staleness_bound(config: GRPOConfig) -> int:
    return config.rollout.max_head_offpolicyness if config.async_training else 0


def _rollout_batch(config: GRPOConfig, ranks: int, data: DataSteps | None) -> BatchPlan:
    each = conversations_per_sample(config)
    prompts, group = config.train_dataset.batch_size, config.gconfig.n_samples * each
    samples, updates = prompts * group, config.actor.ppo_n_minibatches
    bound = staleness_bound(config)
    concurrent = config.rollout.max_concurrent_rollouts or config.rollout.consumer_batch_size
    longest = longest_sample(config)
    numbers = BatchPlan(
        prompts_per_step=prompts,
        samples_per_prompt=group,
        samples_per_step=samples,
        optimizer_steps_per_step=updates,
        samples_per_optimizer_step=samples / updates,
        data_parallel_ranks=ranks,
        max_tokens_per_micro_batch=config.actor.mb_spec.token_limit,
        max_new_tokens=config.gconfig.max_new_tokens,
        max_tokens_per_sample=longest,
        max_tokens_per_step=samples * longest,
        staleness_bound=bound,
        max_prompts_ahead=(bound + 1) * prompts,
        max_concurrent_prompts=concurrent,
        total_steps=_total_steps(config, samples),
        words=(),
    )
    sizes = [*_sizes(numbers, "gconfig.n_samples" + " x n_trajs" * (each > 1)), *_critic(config)]
    return _with_words(numbers, [*sizes, *_tokens(numbers, "actor"), *_age(numbers), _end(config, numbers, data)])


def _dataset_batch(config: "BaseExperimentConfig", ranks: int, data: DataSteps | None) -> BatchPlan:
    fake = config.train_dataset.fake
    rows = fake.batch_size if fake else config.train_dataset.batch_size
    per_row = 2 if config.train_dataset.type == "rw" else 1
    longest = fake.seq_len if fake else config.train_dataset.max_length
    name = "actor" if isinstance(config, GRPOConfig) else "model"
    model = getattr(config, name, None)
    updates = getattr(model, "ppo_n_minibatches", 1)
    numbers = BatchPlan(
        prompts_per_step=rows,
        samples_per_prompt=per_row,
        samples_per_step=rows * per_row,
        optimizer_steps_per_step=updates,
        samples_per_optimizer_step=rows * per_row / updates,
        data_parallel_ranks=ranks,
        max_tokens_per_micro_batch=model.mb_spec.token_limit if model else None,
        max_new_tokens=None,
        max_tokens_per_sample=longest,
        max_tokens_per_step=None if longest is None else rows * per_row * longest,
        staleness_bound=None,
        max_prompts_ahead=None,
        max_concurrent_prompts=None,
        total_steps=_total_steps(config, rows * per_row),
        words=(),
    )
    counted = plural(rows, "random sequence" if fake else "pair" if per_row == 2 else "row")
    key = "train_dataset.fake.batch_size" if fake else "train_dataset.batch_size"
    what = f"{counted} = {rows * 2} sequences" if per_row == 2 and not fake else counted
    steps = "one optimizer step" if updates == 1 else f"{updates} optimizer steps (actor.ppo_n_minibatches)"
    first = f"a step trains on {what} ({key}) in {steps}{_per_rank(rows * per_row, ranks)}"
    alone = ["only the trainer runs: no servers, nothing is generated"] if name == "actor" else []
    return _with_words(numbers, [first, *alone, *_tokens(numbers, name), _end(config, numbers, data)])


def _with_words(numbers: BatchPlan, words: list[str]) -> BatchPlan:
    return numbers._replace(words=tuple(words))


def _sizes(batch: BatchPlan, of_prompt: str) -> list[str]:
    """`of_prompt`: the keys that set the samples of a prompt."""
    samples = (
        f"a step trains on {plural(batch.prompts_per_step, 'prompt')} x {plural(batch.samples_per_prompt, 'sample')} = "
        f"{plural(batch.samples_per_step, 'sample')} (train_dataset.batch_size x {of_prompt})"
        f"{_per_rank(batch.samples_per_step, batch.data_parallel_ranks)}"
    )
    each = batch.samples_per_optimizer_step
    part = f"{each:.0f}" if each == int(each) else f"about {each:.1f}"
    if batch.optimizer_steps_per_step == 1:
        return [samples, "a step makes 1 optimizer step, on all samples (actor.ppo_n_minibatches)"]
    made = f"{batch.optimizer_steps_per_step} optimizer steps"
    noun = "sample" if part == "1" else "samples"
    return [samples, f"a step makes {made}, each on {part} {noun} (actor.ppo_n_minibatches)"]


def _critic(config: GRPOConfig) -> list[str]:
    critic = getattr(config, "critic", None)
    if critic is None or critic.optimizer is None:
        return []
    return [f"the critic makes {plural(critic.ppo_n_minibatches, 'optimizer step')} (critic.ppo_n_minibatches)"]


def _per_rank(samples: int, ranks: int) -> str:
    if ranks == 1:
        return ""
    return f"; about {samples / ranks:g} on each of {ranks} data-parallel ranks, balanced by tokens"


def _tokens(batch: BatchPlan, owner: str) -> list[str]:
    limit = batch.max_tokens_per_micro_batch
    key = f"{owner}.mb_spec.max_tokens_per_mb"
    micro = f"a micro-batch holds at most {limit:,} tokens ({key})" if limit else f"a micro-batch has no limit ({key})"
    longest = batch.max_tokens_per_sample
    if longest is None:
        return [f"{micro}; the length of a sequence has no limit (train_dataset.max_length)"]
    if batch.max_new_tokens is None:
        return [micro, f"a sequence has at most {longest:,} tokens, a step at most {batch.max_tokens_per_step:,}"]
    new = min(batch.max_new_tokens, longest)
    sample = f"a sample has at most {new:,} generated tokens (gconfig.max_new_tokens), {longest:,} with its prompt"
    return [micro, f"{sample}; a step generates at most {new * batch.samples_per_step:,}"]


def _age(batch: BatchPlan) -> list[str]:
    if not batch.staleness_bound:
        return [
            "synchronous: every sample is generated by the weights it trains (staleness bound 0); "
            f"at most {plural(batch.max_concurrent_prompts or 0, 'prompt')} at once"
        ]
    return [
        f"asynchronous: a token is at most {plural(batch.staleness_bound, 'weight version')} older than the weights "
        f"it trains (rollout.max_head_offpolicyness); generation runs at most "
        f"{plural(batch.max_prompts_ahead or 0, 'prompt')} ahead, "
        f"{batch.max_concurrent_prompts} at once"
    ]


def _total_steps(config: "BaseExperimentConfig", samples: int) -> int | None:
    if config.bench:
        return BENCH_STEPS
    limits = [config.total_train_steps] if config.total_train_steps else []
    if config.total_train_n_seqs:
        limits.append(-(-config.total_train_n_seqs // samples))
    return min(limits) if limits else None


def _end(config: "BaseExperimentConfig", batch: BatchPlan, data: DataSteps | None) -> str:
    """Which of the ends comes first, in steps where the rows are counted."""
    epochs = f"{plural(config.total_train_epochs, 'epoch')} of the data"
    if config.bench:
        measured = BENCH_STEPS - WARM_UP_STEPS
        return f"the run ends after {BENCH_STEPS} steps (bench): the first warms up, the other {measured} are measured"
    if batch.total_steps is None and config.train_dataset.fake:
        return "the run does not end until it is stopped"
    by_data = f"the run ends after {epochs} (total_train_epochs)"
    if batch.total_steps is None:
        return by_data if data is None else f"{by_data}: {'at most ' * data.at_most}{plural(data.steps, 'step')}"
    key = "total_train_steps" if batch.total_steps == config.total_train_steps else "total_train_n_seqs"
    if data is not None and data.steps < batch.total_steps and not data.at_least:
        most = "at most " * data.at_most
        return f"{by_data}: {most}{plural(data.steps, 'step')}, before the {batch.total_steps} of {key}"
    steps, samples = plural(batch.total_steps, "step"), batch.total_steps * batch.samples_per_step
    counted = "1 sample" if samples == 1 else f"{samples:,} samples"
    text = f"the run ends after {steps} ({key}), {counted}"
    if config.train_dataset.fake:
        return text
    if data is None or data.steps < batch.total_steps:
        return f"{text}, or after {epochs}, whichever comes first"
    unless = ", unless train_dataset.max_length drops rows" * data.at_most
    return f"{text}: before {epochs}, {'at least ' * data.at_least}{plural(data.steps, 'step')}{unless}"
