"""The tool `search`: paragraphs of local text files, by the words that they share with a query."""

import math
import re
from collections import Counter
from pathlib import Path

WORD = re.compile(r"\w+")
MAX_FILES, MAX_BYTES = 10_000, 64 << 20
NUM_RESULTS, MAX_CHARACTERS = 3, 800
SATURATION, LENGTH_SHARE = 1.5, 0.75
"""The constants k1 and b of BM25."""


class Search:
    """Searches documents; returns the paragraphs that fit a query best."""

    def __init__(self, folder: Path) -> None:
        """Reads all `*.txt` and `*.md` below it."""
        files = sorted(path for kind in ("*.txt", "*.md") for path in folder.rglob(kind) if path.is_file())[:MAX_FILES]
        if not files:
            raise ValueError(f"{folder} has no *.txt or *.md")
        if sum(path.stat().st_size for path in files) > MAX_BYTES:
            raise ValueError(f"the files in {folder} have more than {MAX_BYTES >> 20} MiB together")
        self._paragraphs = [
            (path.relative_to(folder).as_posix(), part.strip())
            for path in files
            for part in re.split(r"\n\s*\n", path.read_text(encoding="utf-8", errors="replace"))
            if part.strip()
        ]
        self._words = [Counter(_words(text)) for _, text in self._paragraphs]
        self._frequency = Counter(word for words in self._words for word in words)
        self._mean_length = sum(words.total() for words in self._words) / max(1, len(self._words))

    def __call__(self, query: str) -> str:
        wanted = set(_words(query))
        scores = [(self._score(words, wanted), -place) for place, words in enumerate(self._words)]
        best = [(score, -place) for score, place in sorted(scores, reverse=True)[:NUM_RESULTS] if score > 0]
        found = [self._paragraphs[place] for _, place in best]
        return "\n\n".join(f"[{name}] {text[:MAX_CHARACTERS]}" for name, text in found) or "nothing was found"

    def _score(self, words: Counter[str], wanted: set[str]) -> float:
        length = 1 - LENGTH_SHARE + LENGTH_SHARE * words.total() / self._mean_length
        return sum(
            math.log(1 + len(self._words) / self._frequency[word])
            * words[word]
            * (SATURATION + 1)
            / (words[word] + SATURATION * length)
            for word in wanted & words.keys()
        )


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())
