"""Temporary folders of killed processes are removed by a later start, those of running ones are not."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from areal_like.process.abandoned_memory import remove_abandoned_memory
from areal_like.process.sandbox.unprivileged_user import unused_user
from areal_like.process.temporary_folders import PREFIXES, SANDBOX, SWEEP, make_temporary_folder, temporary_folder
from tests.support.commands import REPOSITORY

MAKER = """
import sys
from pathlib import Path
from areal_like.process.temporary_folders import make_temporary_folder
folder = Path(make_temporary_folder(sys.argv[1]))
(folder / "deep").mkdir()
print(folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def made_by_another(root: Path, prefix: str) -> tuple[subprocess.Popen[str], Path]:
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER, prefix],
        env={**os.environ, "TMPDIR": str(root), "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert maker.stdout is not None
    return maker, Path(maker.stdout.readline().strip())


@pytest.mark.parametrize("prefix", PREFIXES)
def test_only_the_folder_of_a_killed_process_is_removed(folder, prefix):
    maker, made = made_by_another(folder, prefix)
    remove_abandoned_memory()
    assert (made / "deep").is_dir()
    maker.kill()
    maker.communicate()
    remove_abandoned_memory()
    assert not made.exists()


def test_what_others_named_alike_and_what_this_process_holds_stays(folder):
    (folder / "areal-like-mine").mkdir()
    (folder / f"{SWEEP}link").symlink_to(folder / "areal-like-mine")
    (folder / f"{SWEEP}file").touch()
    with temporary_folder(SWEEP) as held:
        remove_abandoned_memory()
        assert held.is_dir()
    assert sorted(path.name for path in folder.iterdir()) == ["areal-like-mine", f"{SWEEP}file", f"{SWEEP}link"]


@pytest.mark.skipif(os.getuid() != 0 or unused_user() is None, reason="only root runs programs as another user")
def test_the_folder_of_a_sandbox_with_a_user_of_its_own_is_removed_too(folder):
    user = unused_user() or 0
    maker, made = made_by_another(folder, SANDBOX)
    os.chown(made, user, user)
    remove_abandoned_memory()
    assert made.is_dir()
    maker.kill()
    maker.communicate()
    remove_abandoned_memory()
    assert not made.exists()
    assert Path(make_temporary_folder(SANDBOX)).is_dir()
