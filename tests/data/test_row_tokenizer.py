"""Rows become tokens and loss masks."""

from areal_like.data.row_tokenizer import RowTokenizer, TokenSequences, joined
from areal_like.data.tokenizer import TextTokenizer
from areal_like.models import model_folder
from tests.support.chat_models import AGAIN, ANSWER, BARE, LAST, MARKED, PLAIN, SHORTENS, TALK, USER, chat_tokenizer

PLAIN_TEXT = TextTokenizer(model_folder("builtin:tiny-addition"))


def shown(tokenizer: TextTokenizer, tokens: TokenSequences) -> list[tuple[str, str]]:
    """Each sequence, and what of it is learnt (the rest as dots)."""
    actual, at = [], 0
    for length in tokens.lengths_N.tolist():
        ids, counts = tokens.token_ids[at : at + length].tolist(), tokens.counts[at : at + length].tolist()
        signs = [tokenizer.decode([each], skip_special=False) for each in ids]
        actual.append(("".join(signs), "".join(sign if on else "." for sign, on in zip(signs, counts, strict=True))))
        at += length
    return actual


def one(tokenizer: TextTokenizer, prompt: object, answer: object, loss_on: str = "answers") -> tuple[str, str]:
    rows = [{"prompt": prompt, "answer": answer}]
    [actual] = shown(tokenizer, RowTokenizer(tokenizer, "sft", loss_on).tokens(rows))
    return actual


def test_an_answer_and_its_end_token_are_in_the_loss():
    assert one(PLAIN_TEXT, "1+1=", "02") == ("1+1=02<eos>", "....02<eos>")
    assert one(PLAIN_TEXT, "1+1=", "02", "all") == ("1+1=02<eos>", "1+1=02<eos>")


def test_an_answer_with_an_end_token_gets_no_second_one():
    assert one(PLAIN_TEXT, "1+1=", "02<eos>") == ("1+1=02<eos>", "....02<eos>")


def test_all_answers_of_a_conversation_are_in_the_loss(tmp_path):
    tokenizer = chat_tokenizer(tmp_path / "m")
    whole, learnt = one(tokenizer, TALK[:3], [LAST])
    assert whole == "<user> 1+1<eos><assistant> 2<eos><user> 2+2<eos><assistant> 4<eos>"
    assert learnt.replace(".", "") == "2<eos>4<eos>" and learnt.endswith(".4<eos>")
    assert one(tokenizer, TALK[:3], [LAST], "all") == (whole, whole)
    assert one(tokenizer, TALK[:3], "4") == (whole, learnt)


def test_a_template_with_generation_marks_gives_the_same_mask(tmp_path):
    plain, marked = chat_tokenizer(tmp_path / "a"), chat_tokenizer(tmp_path / "b", MARKED)
    assert one(plain, TALK[:3], [LAST]) == one(marked, TALK[:3], [LAST])


def test_template_text_after_an_answer_is_not_in_the_loss(tmp_path):
    tokenizer = chat_tokenizer(tmp_path / "m", PLAIN.replace("<eos>", "<eos> "))
    whole, learnt = one(tokenizer, TALK[:3], [LAST])
    assert whole == "<user> 1+1<eos> <assistant> 2<eos> <user> 2+2<eos> <assistant> 4<eos>"
    assert learnt.replace(".", "") == "2<eos>4<eos>"


def test_a_missing_end_token_is_added(tmp_path):
    whole, learnt = one(chat_tokenizer(tmp_path / "m", BARE), [USER], [ANSWER])
    assert whole == "user: 1+1 | assistant: 2 |<eos>"
    assert learnt.replace(".", "").endswith("2 |<eos>")


def test_answers_that_a_template_shortens_are_counted(tmp_path):
    with_reasoning = {"role": "assistant", "content": "[one and one]2"}
    examples = RowTokenizer(chat_tokenizer(tmp_path / "m", SHORTENS), "sft")
    rows = [{"prompt": [USER, with_reasoning, AGAIN], "answer": [LAST]}] * 3
    assert examples.tokens(rows).num_unlocated == 3


def test_a_pair_is_two_sequences_the_better_one_first(tmp_path):
    texts = [{"prompt": "1+1=", "chosen": "2", "rejected": "30"}]
    assert [whole for whole, _ in shown(PLAIN_TEXT, RowTokenizer(PLAIN_TEXT, "rw").tokens(texts))] == [
        "1+1=2<eos>",
        "1+1=30<eos>",
    ]
    tokenizer = chat_tokenizer(tmp_path / "m")
    wrong = {"role": "assistant", "content": "3"}
    expected = ["<user> 1+1<eos><assistant> 2<eos>", "<user> 1+1<eos><assistant> 3<eos>"]
    for prompt, chosen, rejected in (
        ([USER], [ANSWER], [wrong]),
        ([USER], "2", "3"),
        ("1+1", [ANSWER], [wrong]),
        ("not looked at", [USER, ANSWER], [USER, wrong]),
        ([], [USER, ANSWER], [USER, wrong]),
    ):
        rows = [{"prompt": prompt, "chosen": chosen, "rejected": rejected}]
        assert [whole for whole, _ in shown(tokenizer, RowTokenizer(tokenizer, "rw").tokens(rows))] == expected


def test_a_pair_is_as_long_as_its_longer_sequence():
    pair = {"prompt": "1+1=", "chosen": "2", "rejected": "30"}
    tokens = RowTokenizer(PLAIN_TEXT, "rw").tokens([pair])
    assert [tokens.exceed(most) for most in (6, 7, None)] == [True, False, False]
    assert not RowTokenizer(PLAIN_TEXT, "rl").tokens([]).exceed(1)


def test_sequences_can_be_split_by_rows_and_joined_in_another_order():
    rows = [{"prompt": f"{n}+{n}=", "chosen": str(2 * n), "rejected": "7"} for n in (1, 10, 3)]
    one, other, last = RowTokenizer(PLAIN_TEXT, "rw").tokens(rows).split(2)
    texts = [whole for whole, _ in shown(PLAIN_TEXT, joined([last, one]))]
    assert texts == ["3+3=6<eos>", "3+3=7<eos>", "1+1=2<eos>", "1+1=7<eos>"]
    assert [whole for whole, _ in shown(PLAIN_TEXT, other)] == ["10+10=20<eos>", "10+10=7<eos>"]
