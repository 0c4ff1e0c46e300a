"""Where the last complete line of a file ends."""

from areal_like.process.atomic_file import CHUNK_BYTES, complete_lines_end


def test_the_last_complete_line_of_a_long_file_is_found(tmp_path):
    path = tmp_path / "lines"
    for content, length in ((b"", 0), (b"half", 0), (b"a\n", 2), (b"a\nbc", 2), (b"a\n" + b"b" * 3 * CHUNK_BYTES, 2)):
        path.write_bytes(content)
        assert complete_lines_end(path) == length
