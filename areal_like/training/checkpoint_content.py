"""What a checkpoint is written from: copies in memory, which training does not change."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from areal_like.process.checkpoint_files import KEPT, RESUME, TRAINER
from areal_like.process.hashed_files import HashedFiles
from areal_like.training.engine_snapshot import EngineSnapshot


class CheckpointPurpose(NamedTuple):
    """Why a step's checkpoint is written: to resume from it, to keep it."""

    to_resume: bool
    to_keep: bool

    def __bool__(self) -> bool:
        return self.to_resume or self.to_keep


class CheckpointContent(NamedTuple):
    """The first of `snapshots` is written to the checkpoint's folder itself, the others to subfolders by their names.
    `facts` are the trainer's state that is not tensors."""

    step: int
    due: CheckpointPurpose
    snapshots: Mapping[str, EngineSnapshot]
    facts: dict[str, Any]

    def write_resume_state(self, files: HashedFiles, folder: Path) -> None:
        """This rank's part."""
        for name, snapshot in self.snapshots.items():
            snapshot.write_resume(files, folder / RESUME / name)

    def write_model(self, files: HashedFiles, folder: Path, tokenizer: Path | None, parts: Mapping[str, bytes]) -> None:
        """The first rank's part. `parts` (by file name) is resume state of other components."""
        for number, (name, snapshot) in enumerate(self.snapshots.items()):
            snapshot.write_folder(files, folder / name if number else folder, tokenizer)
        if self.due.to_resume:
            files.write(folder / RESUME / TRAINER, (json.dumps(self.facts, indent=1) + "\n").encode())
            for name, content in parts.items():
                files.write(folder / RESUME / name, content)
        if self.due.to_keep:
            (folder / KEPT).touch()
