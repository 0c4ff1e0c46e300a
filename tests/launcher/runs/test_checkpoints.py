"""The newest checkpoint to resume from; later ones are moved aside."""

import json

from launcher.runs.checkpoints import move_aside_after, newest_resumable


def checkpoint(run, step, size=3, resume=True):
    folder = run / "checkpoints" / f"step_{step:06d}"
    (folder / "resume").mkdir(parents=True)
    (folder / "model").write_text("123")
    parts = {"model": size, "resume/trainer.json": 2} if resume else {"model": size}
    message = {"parts": {name: {"bytes": bytes, "hash": ""} for name, bytes in parts.items()}}
    (folder / "manifest.json").write_text(json.dumps(message))
    (folder / "resume" / "trainer.json").write_text("{}")
    (folder / ".complete").touch()
    return folder


def test_the_newest_complete_resumable_checkpoint_is_chosen(tmp_path):
    assert newest_resumable(tmp_path) is None
    good = checkpoint(tmp_path, 20)
    checkpoint(tmp_path, 9)
    checkpoint(tmp_path, 30, size=4)
    checkpoint(tmp_path, 40, resume=False)
    (checkpoint(tmp_path, 50) / ".complete").unlink()
    (checkpoint(tmp_path, 60) / "manifest.json").write_text("{")
    (checkpoint(tmp_path, 70) / "model").unlink()
    assert newest_resumable(tmp_path) == (20, good)


def test_checkpoints_after_the_resumed_step_are_moved_aside(tmp_path):
    for step in (10, 20, 30):
        checkpoint(tmp_path, step)
    moved = move_aside_after(tmp_path, 10, attempt=2)
    assert [path.name for path in moved] == ["step_000020", "step_000030"]
    assert newest_resumable(tmp_path) is not None
    assert (tmp_path / "checkpoints" / "before-attempt-2" / "step_000030" / "model").read_text() == "123"
    assert move_aside_after(tmp_path, 10, attempt=3) == []
    assert move_aside_after(tmp_path / "none", 0, attempt=2) == []
