"""A disk that takes no writes for a while: who hangs on it is named, and dies when the kernel lets it go; what it
holds is whole."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from areal_like.process.checkpoint_files import checkpoint_problems
from areal_like.rollout.audit import audit
from tests.ring.start import SHORT, running, wait_until_gone
from tests.ring.test_hangs import PATIENT, headlines, trained_steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.xdist_group("ring-1")]

MIB = 200
WORDS = (*SHORT, *PATIENT, "total_train_steps=12", "evaluator.freq_steps=null", "watchdog.launcher_s=20")


class Disk:
    """A file system of its own, which root can freeze: all that write to it then wait in the kernel."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def freeze(self) -> None:
        call("fsfreeze", "--freeze", str(self.folder))

    def thaw(self) -> None:
        call("fsfreeze", "--unfreeze", str(self.folder))


def call(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() or any(shutil.which(program) is None for program in ("mkfs.ext4", "mount", "fsfreeze")):
        pytest.skip("only root can mount and freeze a disk, with mkfs.ext4, mount and fsfreeze")
    image, folder = tmp_path / "image", tmp_path / "runs"
    folder.mkdir()
    image.touch()
    os.truncate(image, MIB << 20)
    call("mkfs.ext4", "-q", str(image))
    mounted = subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", folder], capture_output=True, check=False)
        subprocess.run(["umount", "--lazy", folder], check=False)


def test_a_trainer_that_hangs_on_a_dead_disk_is_named_and_the_run_goes_on_when_the_disk_is_back(tmp_path, disk):
    """The disk has the checkpoints alone."""
    with running(tmp_path / "elsewhere", *WORDS, f"saver.fileroot={disk.folder}") as ring:
        ring.wait_for_step(4, limit_s=900)
        disk.freeze()
        ring.wait_for_text("trainer/0 has made no progress for 5 s while saving", limit_s=300)
        ring.wait_for_text("trainer/0 was killed but cannot be ended: it hangs in the kernel (state D)", limit_s=300)
        assert "no stacks" not in (ring.directory / "logs" / "hang-1" / "rollout-0.txt").read_text()
        disk.thaw()
        ended = ring.wait(900)
    assert ended.code == 0, ended.text
    (headline,) = headlines(ended)
    assert headline.startswith("trainer/0 failed (killed by signal 9 (SIGKILL))") and "watchdog.saving_s:" in headline
    assert "attempt 2 resumes from step" in headline
    assert trained_steps(ended) == list(range(1, 13)) and audit(ended.ledger(), 2) == []
    complete = [path.parent for path in ended.directory.glob("checkpoints/step_*/.complete")]
    assert complete and [problem for folder in complete for problem in checkpoint_problems(folder)] == []
    assert wait_until_gone(ended.directory) == {}
