"""The reference for bench_ring.py: one process that generates, rewards, trains and evaluates in turn, with the same
engines, rows and seeds as a run.

    python tests/bench/plain_loop.py RUN_DIR --steps 160 --threads 1 --output plain.json

RUN_DIR is the directory of a synchronous run: its config.yaml has all other settings.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

BEGAN, BEGAN_CPU = time.time(), time.process_time()

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

from areal_like.data.row_order import RowOrder  # noqa: E402
from areal_like.data.row_table import KEPT, RowTable  # noqa: E402
from areal_like.data.tasks import TEST, TRAIN, make_task  # noqa: E402
from areal_like.data.tokenizer import TextTokenizer  # noqa: E402
from areal_like.data.user_code import SearchFolders  # noqa: E402
from areal_like.models import model_folder  # noqa: E402
from areal_like.observe.timing import Stopwatch  # noqa: E402
from areal_like.process.run import Run, open_run  # noqa: E402
from areal_like.process.seeds import derive_seed  # noqa: E402
from areal_like.rollout.episodes.rewards.base import RewardCall  # noqa: E402
from areal_like.rollout.settings import rollout_settings, run_length  # noqa: E402
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine as Server  # noqa: E402
from areal_like.serving.engines.embedded.core.load_model import load_engine  # noqa: E402
from areal_like.serving.requests import FinishedGroup, GroupRequest, Sampling, parse_sampling  # noqa: E402
from areal_like.training.actor import Actor  # noqa: E402
from areal_like.training.batch import SAMPLER, VERSIONS, TrainingBatch  # noqa: E402
from areal_like.training.engine import TrainEngine  # noqa: E402
from areal_like.training.reference import NoReference  # noqa: E402
from areal_like.training.sequences import concatenate  # noqa: E402
from areal_like.training.world import open_world  # noqa: E402


class Loop:
    """A whole run in one process."""

    def __init__(self, run: Run, steps: int, threads: int) -> None:
        config = run.config
        self.settings, self.steps = rollout_settings(config), steps
        folder = model_folder(config.actor.path, run.cwd)
        task: Any = make_task(config.task.name, config.task.args, SearchFolders(run.folder, run.cwd))
        self.reward = RewardCall(task.reward, config.task.name, {})
        self.rows, self.held_out = task.rows(TRAIN), task.rows(TEST)
        self.tokenizer = TextTokenizer(model_folder(config.tokenizer_path, run.cwd))
        length = run_length(self.settings, len(self.rows))
        table, settings = RowTable(length.rows), self.settings
        table.states[:] = KEPT
        order = RowOrder(
            config.seed, table, settings.batch_size, shuffle=settings.shuffle, drop_last=settings.drop_last
        )
        self.order = order
        self.server: Server = load_engine(config.embedded, folder)
        engine = TrainEngine(config.actor, "actor", folder, open_world(60.0), config.seed)
        engine.set_schedule(length.total_steps)
        self.actor = Actor(engine, NoReference(), config.actor, config.seed)
        torch.set_num_threads(threads)  # both engines run in this thread, in turn
        self.evaluate_every = config.evaluator.freq_steps
        self.watch, self.parts = Stopwatch(), Stopwatch()
        self.scores: list[list[float]] = []
        self.rewards: list[float] = []

    def go(self) -> dict[str, Any]:
        sampling = parse_sampling(self.settings.sampling, self.server.vocab_size)
        self.update(0)
        ready_at, ready_cpu = time.time(), time.process_time()
        times = []
        self.evaluate(0)
        for step in range(self.steps):
            with self.watch("generate"):
                groups = self.groups(step, sampling)
                finished = self.server.generate(groups)
            with self.watch("reward"):
                batch = self.batch(step, groups, finished)
            with self.watch("train"):
                self.actor.compute_logprobs(batch, self.parts)
                self.actor.compute_advantages(batch, self.parts)
                self.actor.update(batch, self.parts)
            with self.watch("update"):
                self.update(step + 1)
            if (step + 1) % self.evaluate_every == 0 or step + 1 == self.steps:
                self.evaluate(step + 1)
            times.append([step + 1, time.time(), time.process_time() - BEGAN_CPU])
        return {
            "began": BEGAN,
            "start_s": ready_at - BEGAN,
            "start_cpu_s": ready_cpu - BEGAN_CPU,
            "threads": torch.get_num_threads(),
            "steps": times,
            "parts_s": self.watch.seconds,
            "scores": self.scores,
            "rewards": self.rewards,
        }

    def row(self, number: int) -> int:
        assert self.order.is_known(number)
        return self.order.row(number)

    def groups(self, step: int, sampling: Sampling) -> list[GroupRequest]:
        """The groups of a synchronous run in this step, with the same seeds."""
        size, seed = self.settings.batch_size, self.settings.sampling_seed
        numbers = range(step * size, (step + 1) * size)
        prompts = self.prompts([self.rows[self.row(number)] for number in numbers])
        return [
            GroupRequest(str(number), prompt, self.settings.n_samples, derive_seed(seed, "sampling", number), sampling)
            for number, prompt in zip(numbers, prompts, strict=True)
        ]

    def prompts(self, rows: Sequence[dict[str, Any]]) -> list[tuple[int, ...]]:
        return [tuple(ids) for ids in self.tokenizer.encode_all([row["prompt"] for row in rows])]

    def score_answers(self, rows: Sequence[dict[str, Any]], answers: Sequence[Sequence[int]]) -> list[dict[str, float]]:
        texts = self.tokenizer.decode_all(answers)
        return [self.reward(row["prompt"], text, row) for row, text in zip(rows, texts, strict=True)]

    def batch(self, step: int, groups: Sequence[GroupRequest], finished: Sequence[FinishedGroup]) -> TrainingBatch:
        """The batch that the trainer would get from the controller."""
        arrays: dict[str, list[Any]] = {name: [] for name in ("token_ids", "loss_mask", SAMPLER, VERSIONS, "lengths")}
        samples = [(group, sample) for group, of in zip(groups, finished, strict=True) for sample in of.samples]
        for group, sample in samples:
            before, after = len(group.prompt), len(sample.token_ids)
            arrays["token_ids"] += [*group.prompt, *sample.token_ids]
            arrays["loss_mask"] += [0] * before + [1] * after
            arrays[SAMPLER] += [0.0] * before + sample.logprobs
            arrays[VERSIONS] += [-1] * before + sample.versions
            arrays["lengths"].append(before + after)
        rows = [self.rows[self.order.row(int(group.id))] for group, _ in samples]
        parts_of_each = self.score_answers(rows, [sample.token_ids for _, sample in samples])
        rewards = [sum(value for name, value in parts.items() if name != "score") for parts in parts_of_each]
        self.rewards.append(sum(rewards) / len(rewards))
        kinds = {"token_ids": np.int32, "loss_mask": np.uint8, SAMPLER: np.float32, VERSIONS: np.int32}
        packed = {name: np.array(values, kinds.get(name, np.int32)) for name, values in arrays.items()}
        return TrainingBatch(
            step=step,
            rewards_A=np.array(rewards, np.float32),
            has_reward_A=np.ones(len(rewards), bool),
            groups_A=np.repeat(np.arange(len(groups)), self.settings.n_samples),
            generated_A=np.array([len(sample.token_ids) for _, sample in samples], np.int64),
            truncated_A=np.array([sample.finish == "length" for _, sample in samples], bool),
            loss_tokens_A=np.array([len(sample.token_ids) for _, sample in samples], np.int64),
            oldest_version=step,
            mine_N=np.arange(len(rewards)),
            sequences=concatenate([packed], (SAMPLER, VERSIONS)),
            num_tokens=int(packed["lengths"].sum()),
        )

    def update(self, version: int) -> None:
        self.server.update_weights(dict(self.actor.engine.export_weights()), version)

    def evaluate(self, version: int) -> None:
        with self.watch("evaluate"):
            sampling = parse_sampling(self.settings.evaluated[0].sampling, self.server.vocab_size)
            groups = [GroupRequest(str(n), ids, 1, 0, sampling) for n, ids in enumerate(self.prompts(self.held_out))]
            answers = [finished.samples[0].token_ids for finished in self.server.generate(groups)]
            scores = [parts["score"] for parts in self.score_answers(self.held_out, answers)]
        self.scores.append([version, sum(scores) / len(scores), time.time(), time.process_time() - BEGAN_CPU])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    result = Loop(open_run(arguments.run_dir), arguments.steps, arguments.threads).go()
    arguments.output.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
