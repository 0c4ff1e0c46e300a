"""Samples of evaluations for trackers: answers to a few rows, the same each time, and the distribution of scores."""

from typing import Any

from areal_like.config.allocation.models import uses_api
from areal_like.data.sampled_text import SampledText
from areal_like.observe.tracker_samples import EVAL, Extras, ExtrasWriter, enabled_extras
from areal_like.process.identity import Identity
from areal_like.process.run import Run
from areal_like.rollout.conversation_facts import CUT_OFF, conversation_numbers, together
from areal_like.rollout.evaluation.evaluation import Evaluation
from areal_like.rollout.groups import Group
from areal_like.rollout.step_metrics import score_of, with_reward
from areal_like.rollout.trajectory import Trajectory, unpack_group

MAX_ANSWERS_PER_ROW = 4
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
        answers: dict[int, list[tuple[dict[str, Any], Trajectory]]] = {}
        pairs = zip(group.facts, unpack_group(group.facts, group.blob), strict=True)
        for number, pair in zip(conversation_numbers(group.facts), pairs, strict=True):
            answers.setdefault(number, []).append(pair)
        samples = []
        for number in range(min(MAX_ANSWERS_PER_ROW, len(answers))):
            fact = together([of_sample for of_sample, _ in answers[number]])
            trajectories = [trajectory for _, trajectory in answers[number]]
            prompt_ids = trajectories[0].prompt_ids.tolist()
            texts = [self._text(each.token_ids[len(each.prompt_ids) :].tolist()) for each in trajectories]
            samples.append(
                {
                    "step": step,
                    "row": group.row,
                    "sample": number,
                    "prompt": self._text(prompt_ids),
                    "answer": "\n".join(texts),
                    "score": score_of(fact),
                    "reward": fact["reward"],
                    "prompt tokens": len(prompt_ids),
                    "answer tokens": fact["generated"],
                    "truncated": fact["finish"] == CUT_OFF,
                    "weights": fact["version_max"],
                }
            )
        return samples
