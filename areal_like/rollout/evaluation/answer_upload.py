"""Uploads the answers of a run's evaluations to the Hugging Face Hub, as a dataset: `python -m
areal_like.rollout.evaluation.answer_upload --run-dir D`. One commit; what others have put in the dataset stays."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_like.process.run import Run
from areal_like.rollout.evaluation.answer_dataset import CARD, DATASET
from areal_like.rollout.evaluation.answer_folders import answers_folder
from areal_like.rollout.evaluation.dataset_card import merged_card
from areal_like.rollout.evaluation.upload_command import upload_command


def files_to_upload(folder: Path, subset: str | None, split: str | None) -> Mapping[str, Path]:
    """Path in the dataset -> file. `subset` stands for what was evaluated, or begins its name where there is more than
    one; with `split` only the answers of the last step are uploaded."""
    evaluated = sorted(each for each in folder.iterdir() if each.is_dir())
    found: dict[str, Path] = {}
    for each in evaluated:
        name = each.name if subset is None else subset if len(evaluated) == 1 else f"{subset}-{each.name}"
        files = sorted(each.glob("step_*.parquet"))
        for file in files if split is None else files[-1:]:
            found[f"{name}/{split or file.stem}.parquet"] = file
    return found


def upload(run: Run, hub: Any) -> str:
    """Returns the address of the dataset. `hub` is the module huggingface_hub."""
    config, wanted = run.config, run.config.evaluator.save.hf
    files = files_to_upload(answers_folder(run) / DATASET, wanted.dataset_subset, wanted.dataset_split)
    api = hub.HfApi()
    name = wanted.dataset_name or f"{config.experiment_name}-{config.trial_name}"
    made = api.create_repo(name, repo_type="dataset", private=wanted.private, exist_ok=True)
    there = api.list_repo_files(made.repo_id, repo_type="dataset")
    before = ""
    if CARD in there:
        # A kept copy would stand for the newest one where the Hub cannot be reached.
        path = hub.hf_hub_download(made.repo_id, CARD, repo_type="dataset", force_download=True)
        before = Path(path).read_text(encoding="utf-8")
    text = merged_card(before, sorted({*_tables(there, wanted.dataset_split), *files}))
    added = [hub.CommitOperationAdd(path, str(file)) for path, file in files.items()]
    added.append(hub.CommitOperationAdd(CARD, text.encode()))
    api.create_commit(
        made.repo_id,
        added,
        repo_type="dataset",
        commit_message=f"Answers of {config.experiment_name}/{config.trial_name}",
    )
    return str(made)


def _tables(paths: Sequence[str], split: str | None) -> Iterator[str]:
    """Those that an upload of answers may have made."""
    splits = "|".join([r"step_\d+", *([re.escape(split)] if split is not None else [])])
    return (path for path in paths if re.fullmatch(rf"[^/]+/({splits})\.parquet", path))


def upload_to_hub(run: Run) -> str:
    import huggingface_hub

    return upload(run, huggingface_hub)


if __name__ == "__main__":
    sys.exit(upload_command("Uploads the answers of a run's evaluations to the Hugging Face Hub.", upload_to_hub))
