"""What the built-in tasks share: rows that a program makes, the same on every machine, cut in two for ever."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import xxhash

from areal_like.data.tasks.base import TEST, TRAIN, Row, RowSequence

TRAIN_PERCENT = 80
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class GeneratedRows(RowSequence):
    """Rows made when they are asked for: a million of them would fill memory for nothing."""

    def __init__(self, numbers: Sequence[int], make: Callable[[int], Row]) -> None:
        self._numbers, self._make = numbers, make

    def __len__(self) -> int:
        return len(self._numbers)

    def row(self, index: int) -> Row:
        return self._make(self._numbers[index])


class HashDraws:
    """Numbers that follow from a text, one after the other; no version of Python or of a library changes them."""

    def __init__(self, text: str) -> None:
        self._text, self._count = text, 0

    def below(self, most: int) -> int:
        self._count += 1
        return xxhash.xxh3_64_intdigest(f"{self._text} {self._count}".encode()) % most

    def among(self, choices: str) -> str:
        return choices[self.below(len(choices))]


def split_of_text(text: str) -> str:
    """By a hash: what `text` stands for is on the same side for ever, on every machine and whatever the seed."""
    return TRAIN if xxhash.xxh3_64_intdigest(text.encode()) % 100 < TRAIN_PERCENT else TEST


def check_split(split: str) -> None:
    if split not in (TRAIN, TEST):
        raise ValueError(f"there is no split {split!r}; there are {TRAIN} and {TEST}")


def generate_rows(num_rows: int, split: str, make: Callable[[int], Row]) -> GeneratedRows:
    """Those of `num_rows` rows that are on one side by their prompt. One that was drawn before counts once."""
    check_split(split)
    chosen, seen = [], set()
    for number in range(num_rows):
        prompt = make(number)["prompt"]
        if prompt not in seen:
            seen.add(prompt)
            if split_of_text(prompt) == split:
                chosen.append(number)
    return GeneratedRows(chosen, make)


class GeneratedTask(ABC):
    """A task whose rows are drawn, each by its number: `row(number)` makes one."""

    def __init__(self, min_length: int = 3, max_length: int = 8, num_rows: int = 10_000) -> None:
        _check_sizes(min_length, max_length, num_rows)
        self.min_length, self.max_length, self.num_rows = min_length, max_length, num_rows

    def rows(self, split: str) -> Sequence[Row]:
        return generate_rows(self.num_rows, split, self.row)

    @abstractmethod
    def row(self, number: int) -> Row: ...

    def length(self, draws: HashDraws) -> int:
        return self.min_length + draws.below(self.max_length - self.min_length + 1)


def _check_sizes(min_length: int, max_length: int, num_rows: int) -> None:
    """A built-in model reads 64 tokens, prompt and answer."""
    for name, value, low, high in (
        ("min_length", min_length, 2, 24),
        ("max_length", max_length, 2, 24),
        ("num_rows", num_rows, 10, 100_000),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"{name} must be a number from {low} to {high}, not {value!r}")
    if min_length > max_length:
        raise ValueError(f"min_length must be at most max_length ({max_length}), not {min_length}")


def swap_neighbours(draws: HashDraws, answer: str) -> str:
    """Two neighbours that differ have changed places; where all are alike, one is lacking."""
    places = [place for place in range(len(answer) - 1) if answer[place] != answer[place + 1]]
    if not places:
        return answer[:-1]
    place = places[draws.below(len(places))]
    return f"{answer[:place]}{answer[place + 1]}{answer[place]}{answer[place + 2 :]}"
