"""Samples of evaluations for trackers: answers to a few rows, the same each time, and the distribution of scores."""

from typing import Any

from areal_like.config.allocation.models import uses_api
from areal_like.config.sections.reward import SCORE_PART
from areal_like.data.sampled_text import SampledText
from areal_like.observe.tracker_samples import EVAL, Extras, ExtrasWriter, enabled_extras
from areal_like.process.identity import Identity
from areal_like.process.run import Run
from areal_like.rollout.evaluation.evaluation import Evaluation
from areal_like.rollout.groups import Group
from areal_like.rollout.step_metrics import score_of, with_reward
from areal_like.rollout.trajectory import unpack_group

MAX_SAMPLES_PER_ROW = 4
"""Further answers to the same row are not shown."""


class EvaluationSamples:
    """Writes them if a tracker of the run shows them."""

    def __init__(self, run: Run, me: Identity) -> None:
        trackers = enabled_extras(run.config.stats_logger)
        self._is_wanted = bool(trackers)
        self._writer = ExtrasWriter(run, me)
        evaluates = run.config.valid_dataset is not None or run.config.evaluator.benchmarks
        shows_text = bool(evaluates) and any(each.samples for each in trackers) and not uses_api(run.config)
        self._text = SampledText(run.config.tokenizer_path, run.cwd) if shows_text else None

    def write(self, evaluation: Evaluation) -> None:
        facts = evaluation.facts
        if not self._is_wanted or not facts:
            return
        groups = sorted(evaluation.shown) if self._text is not None else []
        samples = [sample for group in groups for sample in self._describe(evaluation.version, group)]
        distributions = {
            "score": [score_of(fact) for fact in with_reward(facts)],
            "answer_tokens": [fact["generated"] for fact in facts],
        }
        name = evaluation.evaluated.name
        purpose = f"{EVAL}/{name}" if name else EVAL
        self._writer.write(Extras(evaluation.version, purpose, samples, distributions))

    def _describe(self, step: int, group: Group) -> list[dict[str, Any]]:
        assert self._text is not None
        samples = []
        for number, sample in enumerate(unpack_group(group.facts, group.blob)[:MAX_SAMPLES_PER_ROW]):
            prompt = len(sample.prompt_ids)
            samples.append(
                {
                    "step": step,
                    "row": group.row,
                    "sample": number,
                    "prompt": self._text(sample.prompt_ids.tolist()),
                    "answer": self._text(sample.token_ids[prompt:].tolist()),
                    "score": sample.rewards.get(SCORE_PART, sample.reward),
                    "reward": sample.reward,
                    "prompt tokens": prompt,
                    "answer tokens": int((sample.versions >= 0).sum()),
                    "truncated": sample.finish == "length",
                    "weights": int(sample.versions.max()),
                }
            )
        return samples
