"""Pushes the evaluations of a run to the Environments Hub: `python -m areal_like.rollout.evaluation.hub_push
--run-dir D`. Each once: what is pushed is recorded beside the answers."""

import hashlib
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson

from areal_like.config.problems import plural
from areal_like.process import atomic_file
from areal_like.process.checkpoint_files import step_of
from areal_like.process.run import Run
from areal_like.process.scrubbed_output import know_secrets
from areal_like.rollout.evaluation.answer_folders import answers_folder, files_of, read_answers
from areal_like.rollout.evaluation.hub_evaluation import (
    FRAMEWORK,
    environment_of,
    evaluation_name,
    metadata_of,
    metrics_of,
    model_name,
    sample_of,
)
from areal_like.rollout.evaluation.upload_command import upload_command

RECORD = "environments_hub.json"
"""`step_000020/NAME` -> id of the evaluation, hash of its answers, and whether all of them are there."""
UNKNOWN = ("HTTP 403", "HTTP 404")
"""How an error of the client begins where the Hub does not have what was asked for, or not for this login."""


class Pusher:
    """`hub` is the module prime_evals."""

    def __init__(self, run: Run, hub: Any) -> None:
        self._config, self._hub = run.config, hub
        self._folder = answers_folder(run)
        self._record_path = self._folder / RECORD
        self._record: dict[str, dict[str, Any]] = {}
        if self._record_path.is_file():
            self._record = orjson.loads(self._record_path.read_bytes())
        self._api = hub.APIClient()
        know_secrets([self._api.api_key])
        self._client = hub.EvalsClient(self._api)
        self._unknown: dict[str, str] = {}
        self._notes: list[str] = []

    def push_all(self) -> str:
        """Returns what was done. Where the Hub lacks an environment, the evaluations of the others are pushed, and
        ValueError is raised in the end."""
        done = before = 0
        files = [(step, *each) for step, folder in self._steps() for each in files_of(folder).items()]
        checked: set[str] = set()
        for step, name, path in files:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            earlier = self._record.get(f"{path.parent.name}/{name}", {})
            if earlier.get("answers") == digest and earlier["complete"]:
                before += 1
                continue
            if name not in checked:
                checked.add(name)
                self._check(name)
            if name not in self._unknown:
                self._push(step, name, path, digest)
                done += 1
        if self._unknown:
            raise ValueError("; ".join(self._unknown.values()))
        kept = f", {before} were there already" if before else ""
        where = f"; their ids are in {self._record_path}" if files else ""
        return "; ".join([f"{plural(done, 'evaluation')} pushed to the Environments Hub{kept}{where}", *self._notes])

    def _steps(self) -> list[tuple[int, Path]]:
        folders = [(step_of(each.name), each) for each in self._folder.glob("step_*")]
        return sorted((step, each) for step, each in folders if step is not None)

    def _check(self, name: str) -> None:
        """The client leaves out an environment that it cannot find, whatever the reason."""
        environment = environment_of(self._config, name)
        try:
            if "slug" in environment:
                self._api.get(f"/environmentshub/{environment['slug']}/@latest")
            else:
                team = self._api.config.team_id
                self._api.post("/environmentshub/resolve", {**environment, **({"team_id": team} if team else {})})
        except self._hub.APIError as error:
            if not str(error).startswith(UNKNOWN):
                raise
            (called,) = environment.values()
            self._unknown[name] = (
                f"{name} is not pushed, as the Environments Hub has no environment {called} for this login ({error}); "
                "push that first: prime env push"
            )

    def _push(self, step: int, name: str, path: Path, digest: str) -> None:
        config, lines = self._config, read_answers(path)
        environment, model = environment_of(config, name), model_name(config)
        metrics = metrics_of(lines, config.evaluator.max_failed_share)
        place = f"{path.parent.name}/{name}"
        earlier = self._record.get(place)
        made = self._client.create_evaluation(
            name=evaluation_name(environment, model),
            environments=[environment],
            model_name=model,
            framework=FRAMEWORK,
            metadata=metadata_of(config, name, step, lines),
            metrics=metrics,
        )
        number = str(made["evaluation_id"])
        if earlier is not None:
            why = "has other answers" if earlier["complete"] else "was not complete"
            self._notes.append(f"{place} is pushed anew as {number}: {earlier['evaluation_id']} {why}")
        self._keep(place, number, digest, complete=False)
        sent = self._client.push_samples(number, [sample_of(line, name) for line in lines])
        if skipped := sent.get("samples_skipped"):
            self._notes.append(f"{plural(skipped, 'answer')} of {place} are left out: too long for the Hub")
        self._client.finalize_evaluation(number, metrics)
        self._keep(place, number, digest, complete=True)

    def _keep(self, place: str, number: str, digest: str, complete: bool) -> None:
        self._record[place] = {"evaluation_id": number, "answers": digest, "complete": complete}
        options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
        atomic_file.write_atomic(self._record_path, orjson.dumps(self._record, option=options))


def push(run: Run) -> str:
    return Pusher(run, import_module("prime_evals")).push_all()


if __name__ == "__main__":
    sys.exit(upload_command("Pushes the evaluations of a run to the Environments Hub.", push, "prime_evals"))
