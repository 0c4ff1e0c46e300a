"""`python -m areal_like.rollout.episodes.rewards.served_bench --run-dir DIR --index 0`: scores saved answers by a
reward that queries the reward model of its run. Its launcher writes the answers into the folder of the run, and reads
the scores there."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from areal_like.config.sections.reward import REWARD_MODEL
from areal_like.data.exact_json import dump_json, parse_json
from areal_like.observe.reward_report import ScoredAnswer
from areal_like.process.atomic_file import write_atomic
from areal_like.process.entrypoint import end_process, run_process
from areal_like.process.identity import REWARD, Identity
from areal_like.process.patience import patience_s
from areal_like.process.run import Run
from areal_like.rollout.episodes.rewards.bench import SavedAnswer, score_answers
from areal_like.rollout.episodes.rewards.spec import RewardSpec

ANSWERS, SCORES, COUNTS = "answers.json", "scores.json", "counts.txt"
"""Files in the folder of the run. The last one has a line with the number of answers that are scored, now and then."""
COUNT_EVERY = 10


class _Score(NamedTuple):
    """What there is beside the answer."""

    value: float | None
    seconds: float
    parts: dict[str, float]
    error: str


def write_answers(directory: Path, spec: RewardSpec, answers: Sequence[SavedAnswer]) -> None:
    """Before the process is started, which removes the file: arguments of rewards may be secrets."""
    saved = [[each.place, each.row, each.completion] for each in answers]
    content = dump_json({"spec": spec._asdict(), "answers": saved})
    with open(os.open(directory / ANSWERS, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def remove_answers(directory: Path) -> None:
    (directory / ANSWERS).unlink(missing_ok=True)


def read_scores(directory: Path, answers: Sequence[SavedAnswer]) -> list[ScoredAnswer]:
    """In the order of the answers, once the process has ended."""
    scores = (_Score(*each) for each in parse_json((directory / SCORES).read_bytes()))
    return [
        ScoredAnswer(
            *(each.place, each.prompt, each.completion, score.value, score.seconds, score.parts, score.error, each.row)
        )
        for each, score in zip(answers, scores, strict=True)
    ]


def main(run: Run, me: Identity) -> None:
    content = parse_json((run.directory / ANSWERS).read_bytes())
    remove_answers(run.directory)
    spec = with_model(RewardSpec(**content["spec"]), run.config.reward.args)
    answers = [SavedAnswer(*each) for each in content["answers"]]
    with (run.directory / COUNTS).open("w", encoding="ascii") as file:

        def progress(count: int) -> None:
            if count % COUNT_EVERY == 0 or count == len(answers):
                print(count, file=file, flush=True)

        scored = score_answers(spec, answers, run.config.reward, progress, patience_s(run.config, REWARD))
    scores = [[each.value, each.seconds, dict(each.parts), each.error] for each in scored]
    write_atomic(run.directory / SCORES, dump_json(scores))


def with_model(spec: RewardSpec, args: dict[str, Any]) -> RewardSpec:
    """With the arguments of the reward model that is served, whose path is that of its folder."""
    if spec.name == REWARD_MODEL:
        return spec._replace(args=dict(args))
    parts = [{**part, "args": dict(args)} if part["name"] == REWARD_MODEL else part for part in spec.parts]
    return spec._replace(parts=parts)


if __name__ == "__main__":
    end_process(run_process(main))
