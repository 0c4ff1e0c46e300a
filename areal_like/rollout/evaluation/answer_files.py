"""Writes the answers of evaluations as JSON lines.

A line is one answer, or a row that failed or was rejected. While an evaluation runs, its lines are appended to a file
beside the complete one, which is sorted by row.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from areal_like.data.row_table import hash_text
from areal_like.process import atomic_file
from areal_like.process.errors import FinalFailure
from areal_like.process.ownership import Ownership
from areal_like.process.run import Run
from areal_like.rollout.conversation_facts import by_conversation
from areal_like.rollout.evaluation.answer_dataset import DATASET, write_answers
from areal_like.rollout.evaluation.answer_folders import PARTIAL, answers_folder, answers_path, read_answers
from areal_like.rollout.evaluation.evaluation import KEPT_FACTS, Evaluation
from areal_like.rollout.groups import Group, Result
from areal_like.rollout.step_metrics import score_of

MODEL = "model.json"
"""The hash of the weights that were evaluated, of a run that only evaluates."""


def _dumped(lines: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(orjson.dumps(line) + b"\n" for line in lines)


class AnswerFiles:
    """Writes them. Files of an evaluation that runs again are replaced."""

    def __init__(self, run: Run) -> None:
        self.folder = answers_folder(run)
        save = run.config.evaluator.save
        self._as_dataset = save.as_dataset or save.hf is not None
        self._begun: Evaluation | None = None
        self._ownership = Ownership.of_process(run)

    def add(self, evaluation: Evaluation) -> None:
        """Appends what is not saved yet."""
        if self._begun is evaluation and not evaluation.answered:
            return
        partial = self._path(evaluation).with_suffix(PARTIAL)
        if self._begun is not evaluation:
            partial.parent.mkdir(parents=True, exist_ok=True)
            atomic_file.write_atomic(partial, _dumped(evaluation.saved), self._ownership.require)
            self._begun = evaluation
        self._ownership.require()
        with partial.open("ab") as file:
            for group, result in evaluation.answered:
                file.write(_dumped(answer_lines(group, result)))
        evaluation.answered.clear()

    def complete(self, evaluation: Evaluation) -> None:
        self.add(evaluation)
        path = self._path(evaluation)
        partial = path.with_suffix(PARTIAL)
        lines = sorted(read_answers(partial), key=lambda line: (line["row"], line["sample"]))
        atomic_file.write_atomic(path, _dumped(lines), self._ownership.require)
        self._ownership.require()
        partial.unlink(missing_ok=True)
        if self._as_dataset:
            write_answers(self.folder / DATASET, path.parent.name, path.stem, lines, self._ownership.require)

    def saved(self, names: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
        """The answers that an earlier start of a run without training has saved, by name."""
        found = {}
        for name in names:
            path = answers_path(self.folder, 0, name)
            partial = path.with_suffix(PARTIAL)
            if lines := read_answers(partial if partial.is_file() else path):
                found[name] = lines
        return found

    def check_model(self, digest: str) -> None:
        """The weights must be those of the answers that are saved; `digest` is over all tensors."""
        path = self.folder / MODEL
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_file.write_atomic(path, orjson.dumps({"weights": digest}) + b"\n", self._ownership.require)
        elif (saved := orjson.loads(path.read_bytes())["weights"]) != digest:
            raise FinalFailure(
                f"actor.path: its weights have changed since answers were saved (their hash was {saved} and is now "
                f"{digest}); start another run (trial_name=)"
            )

    def _path(self, evaluation: Evaluation) -> Path:
        return answers_path(self.folder, evaluation.version, evaluation.evaluated.name)


def answer_lines(group: Group, result: Result) -> Iterator[dict[str, Any]]:
    """Without a score where there is none: an error is no wrong answer."""
    if result.status != "done":
        error = f"{result.error_kind}: {group.error}" if result.status == "failed" else "rejected by the workflow"
        yield {"row": group.row, "sample": 0, "row_hash": hash_text(group.row_hash), "error": error}
        return
    texts = result.texts
    for sample, fact in enumerate(by_conversation(result.facts)):
        yield {
            "row": group.row,
            "sample": sample,
            "row_hash": hash_text(group.row_hash),
            **({"error": "no reward"} if fact["reward"] is None else {"score": score_of(fact)}),
            "reward": fact["reward"],
            "rewards": fact["rewards"],
            "finish": fact["finish"],
            "tokens": fact["generated"],
            "weights": [fact["version_min"], fact["version_max"]],
            "prompt": texts.get("prompt", ""),
            "answer": texts["answers"][sample] if texts else "",
            **{name: fact[name] for name in KEPT_FACTS if fact.get(name)},
            **({"messages": fact["messages"]} if "messages" in fact else {}),
        }
