"""Stop texts are detected at the token that completes them, for any tokenization."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from areal_like.serving.stop_text import FinishedText, StopScanner, batch_decoder, finished_texts, scan_tokens

TEXT = ["the quick brown fox\n\njumps över the lazy dög 犬が好き 😀😃 and 終わり. END of it"] * 20
STOPS = ["\n\n", "ö", "犬", "fox\nj", " END", "😃 a", "ck br", "zy dög 犬", "p"]


def byte_level() -> Tokenizer:
    """Characters beyond ASCII are several tokens, as rare ones are with GPT-2, Llama 3 and Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer: Any = trainers.BpeTrainer(
        vocab_size=290, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def with_byte_fallback() -> Tokenizer:
    """Pieces begin with a space, and other text is encoded as bytes, as with Llama 2 and Mistral."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁the", "▁quick", "▁brown", "▁fox", "\n", "▁END", "▁a", "p", "a", "zy", "▁d", "ck", "▁br", "j", "g"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


TOKENIZERS = {"byte-level": byte_level(), "byte-fallback": with_byte_fallback()}


def token(tokenizer: Tokenizer, piece: str) -> int:
    results = tokenizer.token_to_id(piece)
    assert results is not None, piece
    return results


def sequences(tokenizer: Tokenizer, kind: str) -> list[list[int]]:
    """Texts, and tokens at random that are no text at all."""
    chance = random.Random(kind)
    size = tokenizer.get_vocab_size()
    results = [[chance.randrange(size) for _ in range(40)] for _ in range(150)]
    if kind == "byte-level":
        words = TEXT[0].split(" ")
        results += [tokenizer.encode(" ".join(chance.choices(words, k=12))).ids for _ in range(150)]
    else:
        raw = [f"<0x{byte:02X}>" for byte in TEXT[0].encode()]
        whole = [token(tokenizer, piece) for piece in raw]
        results += [whole[chance.randrange(40) :] for _ in range(50)]
    return results


def end_of(tokenizer: Tokenizer, tokens: Sequence[int], stops: Sequence[str], fewest: int = 0) -> int | None:
    """Number of tokens after which the answer ends, one token after the other."""
    reading = StopScanner(stops)
    for count, token in enumerate(tokens, 1):
        if scan_tokens(batch_decoder(tokenizer), [reading], [token], [count > fewest])[0]:
            return count
    return None


def simply(tokenizer: Tokenizer, tokens: Sequence[int], stops: Sequence[str]) -> int | None:
    """The same by decoding the whole text for each token."""
    for count in range(1, len(tokens) + 1):
        text = tokenizer.decode(tokens[:count], skip_special_tokens=False).rstrip("\N{REPLACEMENT CHARACTER}")
        if any(stop in text for stop in stops):
            return count
    return None


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("number", [1, 3, len(STOPS)])
def test_the_token_that_completes_a_stop_text_is_detected(kind: str, number: int) -> None:
    tokenizer, chance = TOKENIZERS[kind], random.Random(number)
    hits = 0
    for tokens in sequences(tokenizer, kind):
        stops = chance.sample(STOPS, number)
        expected = simply(tokenizer, tokens, stops)
        assert end_of(tokenizer, tokens, stops) == expected, (tokens, stops)
        hits += expected is not None
    assert hits > 20


def test_answers_are_scanned_together_each_with_separate_stop_texts() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    answers = [one for one in sequences(tokenizer, "byte-level") if len(one) >= 20]
    readings = [StopScanner(STOPS[number % 4 : number % 4 + 2]) for number in range(len(answers))]
    ends: dict[int, int] = {}
    for place in range(20):
        for number, results in enumerate(
            scan_tokens(batch_decoder(tokenizer), readings, [one[place] for one in answers])
        ):
            if results:
                ends.setdefault(number, place + 1)
    for number, tokens in enumerate(answers):
        assert ends.get(number) == end_of(tokenizer, tokens[:20], STOPS[number % 4 : number % 4 + 2])


def test_a_stop_text_before_an_incomplete_character_counts() -> None:
    tokenizer = TOKENIZERS["byte-fallback"]
    newline, half = token(tokenizer, "\n"), token(tokenizer, "<0xE7>")
    letter = token(tokenizer, "a")
    assert end_of(tokenizer, [letter, half, newline], ["\n"]) == 3
    assert end_of(tokenizer, [letter, half, letter], ["\n"]) is None


def test_a_special_token_counts_as_its_text() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    tokens = [*tokenizer.encode("the fox").ids, token(tokenizer, "<|end|>")]
    assert end_of(tokenizer, tokens, ["<|end|>"]) == len(tokens)


def test_a_stop_text_before_the_minimum_length_is_skipped() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    tokens = tokenizer.encode("the END the the the END the").ids
    first = end_of(tokenizer, tokens, [" END"])
    assert first is not None and first < (end_of(tokenizer, tokens, [" END"], first) or 0) < len(tokens)
    early = tokenizer.encode("the END the").ids
    assert end_of(tokenizer, early, [" END", "x"], first) is None


def test_an_answers_text_is_without_its_stop_text() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    read, end = batch_decoder(tokenizer, skip_special=True), token(tokenizer, "<|end|>")

    def ending(text: str, finish: str, *stops: str, more: Sequence[int] = ()) -> FinishedText:
        return finished_texts(read, [([*tokenizer.encode(text).ids, *more], finish)], stops)[0]

    assert ending("the fox\n", "stop", "\n", "x\n") == ("the fo", "x\n")
    assert ending("the lazy dög 犬", "stop", "zy dög 犬") == ("the la", "zy dög 犬")
    assert ending("the fox", "stop", "the", more=[end]) == ("the fox", None)
    assert ending("the fox", "length", "fox") == ("the fox", None)
    letter = tokenizer.encode("p").ids
    assert ending("the fox", "stop", "the", more=letter) == ("the fox", None)
    assert finished_texts(read, [(letter, "stop"), (letter, "length")], ["p"]) == [("", "p"), ("p", None)]
