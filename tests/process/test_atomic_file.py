"""Files are written as a whole, and where the last complete line of a file ends."""

import os

import pytest

from areal_like.process.atomic_file import CHUNK_BYTES, complete_lines_end, remove_half_files, write_atomic


def test_the_last_complete_line_of_a_long_file_is_found(tmp_path):
    path = tmp_path / "lines"
    for content, length in ((b"", 0), (b"half", 0), (b"a\n", 2), (b"a\nbc", 2), (b"a\n" + b"b" * 3 * CHUNK_BYTES, 2)):
        path.write_bytes(content)
        assert complete_lines_end(path) == length


def test_a_writer_that_was_stalled_does_not_write_into_the_file_of_its_successor(tmp_path, monkeypatch):
    path, fsync, same = tmp_path / "attempt.json", os.fsync, []

    def stalled(handle: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        write_atomic(path, "the successor's")
        same.append(os.path.samestat(os.fstat(handle), path.stat()))

    def require() -> None:
        raise OSError("another launcher has begun")

    monkeypatch.setattr(os, "fsync", stalled)
    with pytest.raises(OSError, match="another launcher"):
        write_atomic(path, "the old one's", require)
    assert same == [False]
    assert path.read_text() == "the successor's" and list(tmp_path.iterdir()) == [path], "nothing is left behind"


def test_a_start_removes_what_killed_writers_have_left(tmp_path):
    for name in (".run.json.7-ab12.half", ".other", "half"):
        (tmp_path / name).touch()
    (tmp_path / ".folder.half").mkdir()
    remove_half_files(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".folder.half", ".other", "half"]
