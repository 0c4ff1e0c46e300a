"""Prompts and answers made from the columns of a row: templates, system messages, choices, answers in solutions."""

from typing import Any

import pytest

from areal_like.config.problems import ConfigError
from areal_like.config.sections.data import DatasetConfig
from areal_like.data.row_format import RowFormat, conversation
from tests.support.planning import loaded

USER, SYSTEM = "user", "system"


def row_of(raw: dict[str, Any], kind: str = "rl", **settings: Any) -> dict[str, Any]:
    return RowFormat(DatasetConfig(**{"type": kind, **settings}), "train_dataset")(raw)


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("Q: {prompt} {{}}", "Q: 1+1 {}"),
        ("{meta.level}/{tags.1}", "3/b"),
        ("{tags} {meta}", '["a", "b"] {"level": 3}'),
    ],
)
def test_a_template_is_filled_with_columns(template, expected):
    row = row_of({"question": "1+1", "meta": {"level": 3}, "tags": ["a", "b"]}, fields={"prompt": "question"})
    assert row_of(row, prompt_template=template)["prompt"] == expected


def test_a_row_of_another_kind_than_required_is_an_error():
    row = {"prompt": "1", "task": "math", "level": 3}
    assert row_of(row, require={"task": "math", "level": "3", "absent": "x"})["prompt"] == "1"
    with pytest.raises(ValueError, match=r"'task' is 'code', and its reward is for 'math' alone"):
        row_of({**row, "task": "code"}, require={"task": "math"})


def test_what_is_required_of_a_column_counts_under_the_name_that_fields_give_it():
    row, fields = (
        {"prompt": "1", "kind": "math", "of": {"level": 3}, "task": "code"},
        {"task": "kind", "level": "of.level"},
    )
    assert row_of(row, fields=fields, require={"task": "math", "level": "3", "kind": "math"})["task"] == "math"
    for other in ({"kind": "code"}, {"of": {"level": 4}}):
        with pytest.raises(ValueError, match="and its reward is for"):
            row_of({**row, **other}, fields=fields, require={"task": "math", "level": "3"})
    with pytest.raises(ValueError, match="'kind' is 'math'"):
        row_of(row, fields=fields, require={"kind": "code"})


def test_a_template_makes_the_prompt_of_rows_without_one():
    row = row_of({"numbers": [3, 4], "target": 7}, prompt_template="Make {target} of {numbers}.", as_chat=True)
    assert row["prompt"] == [message(USER, "Make 7 of [3, 4].")] and row["target"] == 7


@pytest.mark.parametrize(
    ("raw", "settings", "reason"),
    [
        ({"prompt": "1"}, {"prompt_template": "{question}"}, "'question' (train_dataset.prompt_template) is missing"),
        ({"prompt": [message(USER, "1")]}, {"prompt_template": "{prompt}"}, "which no template can contain"),
        ({"prompt": "1", "answer": "two"}, {"answer_from": "hashes"}, "'two', without ####"),
        ({"prompt": "1", "answer": r"\boxed{1"}, {"answer_from": "boxed"}, "without \\boxed{}"),
        ({"prompt": "1", "choices": ["a"]}, {"multiple_choice": "choices"}, "not a list of 2 to 26 choices"),
        ({"prompt": "1", "choices": ["a", "b"], "answer": 2}, {"multiple_choice": "choices"}, "none of the 2 choices"),
    ],
)
def test_a_row_that_lacks_what_is_needed_is_an_error(raw, settings, reason):
    with pytest.raises(ValueError) as caught:
        row_of(raw, **settings)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("1+1", [message(SYSTEM, "Be brief."), message(USER, "1+1")]),
        ([message(USER, "1+1")], [message(SYSTEM, "Be brief."), message(USER, "1+1")]),
        ([message(SYSTEM, "Own."), message(USER, "1+1")], [message(SYSTEM, "Own."), message(USER, "1+1")]),
        ("", ""),
    ],
)
def test_a_system_message_stands_before_prompts_that_have_none(prompt, expected):
    assert row_of({"prompt": prompt}, system_prompt="Be brief.")["prompt"] == expected


def test_a_system_message_is_part_of_supervised_conversations():
    talk = [message(USER, "1+1"), message("assistant", "2")]
    row = row_of({"messages": talk}, "sft", system_prompt="Be brief.")
    assert row["prompt"] == [message(SYSTEM, "Be brief."), talk[0]] and row["answer"] == talk[1:]


ASKED, GOOD, BAD = message(USER, "1+1"), message("assistant", "2"), message("assistant", "3")
SHORT, OWN = message(SYSTEM, "Be brief."), message(SYSTEM, "Own.")
WHOLE = {"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]}


@pytest.mark.parametrize(
    ("raw", "chosen", "rejected"),
    [
        (WHOLE, [SHORT, ASKED, GOOD], [SHORT, ASKED, BAD]),
        ({"prompt": "1+1", **WHOLE}, [SHORT, ASKED, GOOD], [SHORT, ASKED, BAD]),
        ({"prompt": [ASKED], **WHOLE}, [SHORT, ASKED, GOOD], [SHORT, ASKED, BAD]),
        ({"chosen": [OWN, ASKED, GOOD], "rejected": [ASKED, BAD]}, [OWN, ASKED, GOOD], [SHORT, ASKED, BAD]),
        ({"prompt": "1+1", "chosen": [GOOD], "rejected": "3"}, [SHORT, ASKED, GOOD], [SHORT, ASKED, BAD]),
    ],
)
def test_a_system_message_stands_before_both_conversations_of_a_pair(raw, chosen, rejected):
    row = row_of(raw, "rw", system_prompt="Be brief.")
    assert conversation(row["prompt"], row["chosen"]) == chosen
    assert conversation(row["prompt"], row["rejected"]) == rejected
    assert WHOLE == {"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]}, "the row in the file stays as it is"


@pytest.mark.parametrize("settings", [{"prompt_template": "{prompt}?"}, {"remove_text": ["+"]}])
@pytest.mark.parametrize("prompt", [{}, {"prompt": "1+1"}])
def test_settings_that_cannot_change_the_prompts_in_whole_conversations_are_an_error(settings, prompt):
    (key,) = settings
    with pytest.raises(ValueError, match=rf"^'chosen' is a whole conversation, .* train_dataset.{key} .*; leave it"):
        row_of({**prompt, **WHOLE}, "rw", **settings)
    pair = row_of({"prompt": "1+1", "chosen": [GOOD], "rejected": "3"}, "rw", **settings)
    assert (pair["prompt"], pair["chosen"]) in (("1+1?", [GOOD]), ("11", [GOOD]))


def test_texts_are_removed_from_prompts():
    row = row_of({"prompt": "<U>1+1<A>"}, remove_text=["<U>", "<A>"])
    assert row["prompt"] == "1+1"


@pytest.mark.parametrize(
    ("source", "answer", "expected"),
    [
        ("hashes", "9 * 2 = 18\n#### 18", "18"),
        ("hashes", "#### 1 #### 1,000 ", "1,000"),
        ("boxed", r"so \boxed{1}, no: \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (None, "whole text", "whole text"),
    ],
)
def test_the_answer_is_found_in_its_column(source, answer, expected):
    assert row_of({"prompt": "1", "answer": answer}, answer_from=source)["answer"] == expected


class TestChoices:
    TEXTS = ("Oslo", "Rome", "7")

    @pytest.mark.parametrize(
        ("source", "answer", "letter"),
        [
            (None, 0, "A"),
            (None, "Rome", "B"),
            (None, "c", "C"),
            (None, "(B)", "B"),
            (None, "7", "C"),
            (None, "2", "B"),
            ("index", 2, "C"),
            ("index", "1", "B"),
            ("letter", "a.", "A"),
            ("letter", "3", "C"),
            ("text", "7", "C"),
        ],
    )
    def test_the_answer_becomes_a_letter(self, source, answer, letter):
        raw = {"prompt": "Capital of Italy?", "options": list(self.TEXTS), "answer": answer}
        row = row_of(raw, multiple_choice="options", answer_from=source)
        assert row["answer"] == letter and row["choices"] == list(self.TEXTS)
        assert row["prompt"] == "Capital of Italy?\nA. Oslo\nB. Rome\nC. 7"

    @pytest.mark.parametrize(("source", "letter"), [("letter", "B"), ("text", "A"), (None, None)])
    def test_a_letter_that_is_the_text_of_another_choice_needs_to_be_named(self, source, letter):
        raw = {"prompt": "First?", "options": ["B", "C", "D"], "answer": "B"}
        if letter is not None:
            assert row_of(raw, multiple_choice="options", answer_from=source)["answer"] == letter
            return
        with pytest.raises(ValueError, match="'B', a letter and the text of another choice; set answer_from"):
            row_of(raw, multiple_choice="options")

    def test_choices_follow_the_last_text_of_the_user_in_a_prompt_of_messages(self):
        parts = {"role": USER, "content": [{"type": "image"}]}
        talk = [message(USER, "Hi."), message("assistant", "Yes?"), message(USER, "Capital?"), parts]
        raw = {"prompt": talk, "options": list(self.TEXTS), "answer": "Rome"}
        row = row_of(raw, multiple_choice="options", system_prompt="Be brief.")
        asked = message(USER, "Capital?\nA. Oslo\nB. Rome\nC. 7")
        assert row["prompt"] == [message(SYSTEM, "Be brief."), *talk[:2], asked, parts] and row["answer"] == "B"
        assert talk[2] == message(USER, "Capital?"), "the row in the file stays as it is"
        with pytest.raises(ValueError, match=r"^'prompt' is .* which choices could follow \(train_dataset.multiple_ch"):
            row_of({**raw, "prompt": [parts]}, multiple_choice="options")

    def test_choices_may_be_nested_and_stand_in_a_template(self):
        raw = {"prompt": "Which?", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answer": "B"}
        row = row_of(raw, multiple_choice="choices.text", prompt_template="{choices}\n{prompt}")
        assert row["prompt"] == "A. x\nB. y\nWhich?" and row["choices"] == ["x", "y"]


class TestConfiguration:
    @pytest.mark.parametrize(
        ("override", "reason"),
        [
            ("prompt_template='{question'", "is not a template: expected '}'"),
            ("prompt_template='{a!r}'", "{a!r} is not the name of a column"),
            ("prompt_template='the same'", "it has no column"),
            ("answer_from=index", "set train_dataset.multiple_choice to their column"),
        ],
    )
    def test_what_cannot_be_filled_is_refused(self, override, reason):
        with pytest.raises(ConfigError) as caught:
            loaded("grpo", f"train_dataset.{override}")
        (problem,) = caught.value.problems
        assert problem.key.startswith("train_dataset.") and reason in problem.message

    def test_an_answer_in_a_text_is_no_choice(self):
        with pytest.raises(ConfigError, match="leave it out"):
            loaded("grpo", "train_dataset.multiple_choice=options", "train_dataset.answer_from=boxed")

    def test_evaluation_data_follow(self):
        config = loaded("grpo", "train_dataset.prompt_template='{prompt}?'", "train_dataset.system_prompt=Add.").config
        assert (config.valid_dataset.prompt_template, config.valid_dataset.system_prompt) == ("{prompt}?", "Add.")
