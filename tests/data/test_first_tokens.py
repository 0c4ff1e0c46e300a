"""The first tokens of a dataset, of which the probe of a run is made."""

from collections.abc import Iterable

from areal_like.data.first_tokens import first_tokens
from areal_like.data.tasks import Row
from areal_like.data.tasks.addition import Addition
from areal_like.data.tokenizer import TextTokenizer
from areal_like.models import model_folder
from tests.support.chat_models import TALK, chat_tokenizer

PLAIN = TextTokenizer(model_folder("builtin:tiny-addition"))


def text(tokenizer: TextTokenizer, rows: Iterable[Row], count: int) -> str:
    ids = first_tokens(rows, tokenizer, count)
    assert len(ids) in (0, count)
    return tokenizer.decode(ids, skip_special=False)


def test_rows_follow_each_other_with_their_answers():
    assert text(PLAIN, Addition().rows("train"), 25) == "00+00=000<eos>00+02=002<eos>00+03"
    assert text(PLAIN, [{"prompt": "1+1="}, {"prompt": "2+", "answer": {"kind": 3}}], 6) == "1+1=2+"


def test_messages_go_through_the_chat_template(tmp_path):
    tokenizer = chat_tokenizer(tmp_path / "m")
    whole = "<user> 1+1<eos><assistant> 2<eos><user> 2+2<eos><assistant> 4<eos>"
    count = len(tokenizer.encode(whole, special=False))
    assert text(tokenizer, [{"prompt": TALK[:3], "answer": "4"}], count) == whole
    assert text(tokenizer, [{"prompt": TALK[:3]}], count - 3).endswith("2+2<eos><assistant>")


def test_few_rows_are_repeated_and_rows_without_tokens_left_out():
    assert text(PLAIN, [{"prompt": "1+"}, {"prompt": "ß"}, {"prompt": ""}], 5) == "1+1+1"
    assert text(PLAIN, [{"prompt": "ß"}], 5) == ""
