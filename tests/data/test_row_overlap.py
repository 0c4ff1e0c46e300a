"""Rows that are in both the training and the held-out data, against a slow and plain comparison."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_like.data import row_overlap
from areal_like.data.row_overlap import (
    LEAST_SHARE,
    TEMPLATE_ROWS,
    TEMPLATE_SHARE,
    HeldOutRows,
    Overlap,
    compared_text,
    read_training_rows,
    words_of,
)


def overlaps(train: list[str], held_out: list[str], ngram: int) -> list[Overlap]:
    index = HeldOutRows(held_out, ngram)
    list(read_training_rows(train, [index]))
    return list(index.overlaps())


def grams_of(text: str, ngram: int) -> set[tuple[str, ...]]:
    words = words_of(text)
    return {tuple(words[at : at + ngram]) for at in range(len(words) - ngram + 1)}


def plain_overlaps(train: list[str], held_out: list[str], ngram: int) -> list[tuple[object, ...]]:
    counts = Counter(gram for text in held_out for gram in grams_of(text, ngram))
    is_many = len(held_out) >= TEMPLATE_ROWS
    template = {gram for gram, n in counts.items() if is_many and n > TEMPLATE_SHARE * len(held_out)}
    in_train = {gram for text in train for gram in grams_of(text, ngram)}
    found: list[tuple[object, ...]] = []
    for row, text in enumerate(held_out):
        if not words_of(text):
            continue
        exact = next((n for n, each in enumerate(train) if each == text), None)
        equal = next((n for n, each in enumerate(train) if words_of(each) == words_of(text)), None)
        own = grams_of(text, ngram) - template
        share = len(own & in_train) / max(1, len(own))
        if equal is not None or share >= LEAST_SHARE:
            found.append((row, exact, equal, share))
    return found


TEXTS = st.lists(st.text(st.sampled_from("ab A+.,"), max_size=24), max_size=14)


@given(TEXTS, TEXTS, st.integers(1, 4))
def test_overlaps_are_those_of_a_comparison_of_all_pairs(train: list[str], held_out: list[str], ngram: int) -> None:
    assert [each[:4] for each in overlaps(train, held_out, ngram)] == plain_overlaps(train, held_out, ngram)


def test_rows_are_read_in_parts_and_the_first_training_row_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_overlap, "ROWS_AT_ONCE", 2)
    train = ["one two three four", "five six seven", "eight nine ten eleven", "Five, six seven!", "nine ten eleven"]
    held_out = ["five SIX seven", "eight nine ten eleven", "ten eleven twelve thirteen", "zero nine ten eleven"]
    index = HeldOutRows(held_out, 2)
    assert list(read_training_rows(iter(train), [index])) == [2, 4, 5]
    assert list(index.overlaps()) == [
        *(Overlap(0, None, 1, 1.0, 1), Overlap(1, 2, 2, 1.0, 2), Overlap(3, None, None, 2 / 3, 2))
    ]


def test_signs_are_words_and_the_template_of_all_rows_is_no_overlap() -> None:
    assert overlaps(["3 - 2 = ?"], ["3 + 2 = ?"], 2) == []
    template = "Solve this and put the answer into a box: "
    held_out = [f"{template}{n} and {n + 1}" for n in range(20)]
    assert overlaps([f"{template}{n}" for n in range(100, 110)], held_out, 4) == []
    assert [each.row for each in overlaps([held_out[7].upper()], held_out, 4)] == [7]


def test_system_messages_are_left_out_of_a_prompt() -> None:
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}
    assert compared_text({"prompt": [system, user]}, "rl") == compared_text({"prompt": "1+1?"}, "rl") == "1+1?"


def test_a_row_without_a_prompt_is_compared_by_its_chosen_answer_or_its_text() -> None:
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}
    assert compared_text({"prompt": "", "chosen": "Human: 1+1?", "rejected": "no"}, "rw") == "Human: 1+1?"
    assert compared_text({"prompt": [system], "chosen": [system, user], "rejected": [user]}, "rw") == "1+1?"
    assert compared_text({"prompt": "", "answer": "once"}, "sft") == "once"
    assert compared_text({"prompt": "2?", "chosen": "a", "answer": "b"}, "rw") == "2?"
    assert compared_text({"prompt": "", "answer": "4"}, "rl") == "", "its answer is what it is scored by"
