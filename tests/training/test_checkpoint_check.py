"""How a checkpoint is verified before it is loaded, and that it is not read again to be sealed."""

import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from areal_like.process.checkpoint_files import (
    COMPLETE,
    MANIFEST,
    OTHER_CONTENT,
    can_resume,
    manifest_parts,
    resume_problem,
    write_manifest,
)
from areal_like.process.errors import Failure, TimedOut
from areal_like.process.hashed_files import FilePart, HashedFiles
from areal_like.training import checkpoint_check
from areal_like.training.checkpoint_check import SharedCheck, check_complete, shares
from areal_like.training.rank_vote import RankVote
from tests.support.training_runs import make_engine, make_run, model_folder, world
from tests.training.test_checkpoint import learn, written

CPU_GROUP = object()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "step_000002"
    (folder / "resume").mkdir(parents=True)
    for number in range(5):
        (folder / "resume" / f"part-{number}").write_bytes(bytes([number]) * (number + 1) * 1000)
    write_manifest(folder, 2)
    return folder


def test_a_part_that_another_rank_wrote_elsewhere_is_missed_at_once(tmp_path):
    """Nodes without a common disk: the run would find out when it is resumed."""
    written = {f"resume/part-{rank}": FilePart(3, "") for rank in range(2)}
    (tmp_path / "resume").mkdir()
    (tmp_path / "resume" / "part-0").write_bytes(b"abc")
    with pytest.raises(OSError, match=r"resume/part-1 was written, perhaps by a rank of another node, and is not"):
        write_manifest(tmp_path, 2, written)
    assert not (tmp_path / COMPLETE).exists()


@pytest.mark.parametrize("content", ["", "[]", '{"parts": null}', '{"parts": [1]}', '{"parts": {"resume/x": 3}}'])
def test_a_checkpoint_with_a_damaged_manifest_is_not_resumed(checkpoint, content):
    assert can_resume(checkpoint)
    (checkpoint / MANIFEST).write_text(content)
    assert not can_resume(checkpoint) and "cannot be read" in str(resume_problem(checkpoint))


class OtherRank:
    """Takes the place of the collectives of two ranks on GPUs; the other rank has a share of the check as well."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left: list[int], problems: bytes = b"[]") -> None:
        self.groups: list[Any] = []
        self.made: list[dict[str, Any]] = []
        self.left, self.problems = left, problems
        monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
        monkeypatch.setattr(dist, "new_group", self._new_group)
        monkeypatch.setattr(dist, "all_reduce", self._all_reduce)
        monkeypatch.setattr(dist, "all_gather", self._all_gather)

    def _new_group(self, **how: Any) -> object:
        self.made.append(how)
        return CPU_GROUP

    def _all_reduce(self, total: torch.Tensor, group: object = None) -> None:
        self.groups.append(group)
        total += self.left.pop(0)

    def _all_gather(self, out: list[torch.Tensor], own: torch.Tensor, group: object = None) -> None:
        self.groups.append(group)
        out[0].copy_(own)
        if own.dtype == torch.int64:
            out[1].fill_(len(self.problems))
        else:
            out[1][: len(self.problems)] = torch.tensor(list(self.problems), dtype=torch.uint8)


def of_two(rank: int = 0) -> RankVote:
    two: Any = SimpleNamespace(rank=rank, size=2, store=None)
    return RankVote(two, 7, "actor.dist_timeout_s")


def test_ranks_wait_for_each_other_on_the_cpu_group_with_a_limit(checkpoint, monkeypatch):
    """Not in a collective of GPUs, whose watchdog would end it."""
    others = OtherRank(monkeypatch, left=[9000, 4000, 0])
    check_complete(checkpoint, of_two())
    assert others.made == [{"backend": "gloo", "timeout": timedelta(seconds=7)}]
    assert others.groups == [CPU_GROUP] * 5 and others.left == []

    def hangs(*_: Any, **__: Any) -> None:
        raise RuntimeError("timed out")

    monkeypatch.setattr(dist, "all_reduce", hangs)
    with pytest.raises(TimedOut, match=r"actor\.dist_timeout_s: another rank did not report within 7 s how much of"):
        check_complete(checkpoint, of_two())


def test_progress_is_reported_while_another_rank_reads(checkpoint, monkeypatch, caplog):
    OtherRank(monkeypatch, left=[9000, 0])
    with caplog.at_level("INFO", logger=checkpoint_check.__name__):
        check_complete(checkpoint, of_two())
    assert [record.message for record in caplog.records] == [f"{checkpoint}: 0.0 of 0.0 GB are checked"]


def test_damage_that_another_rank_found_is_named_here_too(checkpoint, monkeypatch):
    OtherRank(monkeypatch, left=[0], problems=b'["step_000002/resume/part-3 is bad"]')
    with pytest.raises(Failure, match=r"step_000002/resume/part-3 is bad; choose another with resume_step"):
        check_complete(checkpoint, of_two())


def test_shares_have_every_file_once_and_nearly_equal_bytes():
    parts = {f"{number}": FilePart(size, "") for number, size in enumerate([7, 5, 4, 3, 3, 2])}
    made = shares(parts, 3)
    assert sorted(name for share in made for name in share) == sorted(parts)
    assert [sum(part.bytes for part in share.values()) for share in made] == [9, 8, 7]


def test_a_share_is_read_in_portions_and_its_damaged_files_are_named(checkpoint):
    parts = manifest_parts(checkpoint)
    damaged, missing = checkpoint / "resume" / "part-1", checkpoint / "resume" / "part-4"
    damaged.write_bytes(b"x" * 2000)
    missing.unlink()
    share = SharedCheck(checkpoint, parts)
    left: list[int] = []
    while not left or left[-1]:
        left.append(share.advance(0.0))
    assert left[:3] == [14000, 12000, 9000] and left[-1] == 0
    assert share.problems[0] == f"step_000002/resume/part-1 {OTHER_CONTENT}"
    assert share.problems[1].startswith("step_000002/resume/part-4 cannot be read (")


def test_files_have_the_hashes_that_they_got_while_they_were_written(tmp_path):
    files, sources = HashedFiles(), [tmp_path / "one", tmp_path / "two"]
    files.write(sources[0], b"x" * (1 << 23))
    files.copy(sources[0], sources[1])
    hashed = SharedCheck(tmp_path, files.below(tmp_path))
    assert hashed.advance(600) == 0 and hashed.problems == [] and len(files.below(tmp_path)) == 2


READ: list[str] | None = None


def note_reads(event: str, given: tuple[Any, ...]) -> None:
    if READ is not None and event == "open" and given[1] in ("r", "rb"):
        READ.append(str(given[0]))


def test_sealing_a_checkpoint_reads_no_weights_and_no_state(tmp_path):
    """Only the configuration, which transformers has written, and the manifest to see what to delete."""
    global READ
    run = make_run(tmp_path / "run", "sft", f"model.path={model_folder(tmp_path, 'llama')}", "recover.freq_steps=2")
    engine = make_engine(Path(run.config.model.path))
    learn(engine, 0)
    sys.addaudithook(note_reads)
    READ = []
    folder = written(run, engine, 2)
    read, READ = READ, None
    below = [Path(path).name for path in read if str(run.checkpoints) in path]
    assert sorted(below) == ["config.json", "manifest.json"]
    check_complete(folder, RankVote(world(), 60, "actor.dist_timeout_s"))
