"""Answers that a user gives as JSON lines."""

import json
from pathlib import Path

from areal_like.rollout.answer_lines import read_lines


def test_lines_end_at_line_feeds_alone_and_keep_their_number(tmp_path: Path) -> None:
    file, large = tmp_path / "a.jsonl", 2**70 + 1
    texts = ["one\u2028two", "three\x85\x0bfour"]
    lines = [json.dumps({"completion": text, "n": large}, ensure_ascii=False) for text in texts]
    file.write_text("\n\n".join(lines), encoding="utf-8")
    assert list(read_lines(file)) == [
        (f"{file}:1", {"completion": texts[0], "n": large}),
        (f"{file}:3", {"completion": texts[1], "n": large}),
    ]
