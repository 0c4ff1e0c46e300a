"""Each built-in reward on small cases whose value is known."""

import asyncio
import math

import pytest

from areal_like.rollout.episodes.rewards import RewardError, RewardSpec, load_reward
from tests.support.reward_parts import open_pool

PARIS = {"answer": "Paris", "choices": ["Rome", "Paris", "Oslo"]}
PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


def reward_of(name, args, completion, **row):
    call = load_reward(RewardSpec(name, args, None, {}, ".", "."))
    assert call is not None
    return call("the question", completion, row)


@pytest.mark.parametrize(
    ("args", "completion", "answer", "value"),
    [
        ({}, "046", "046", 1),
        ({}, " 046\n", "046", 1),
        ({}, "46", "046", 0),
        ({}, "the answer is 046", "046", 0),
        ({"take": "final"}, "the answer is 046", "046", 1),
        ({"take": "tag"}, "<think>1</think> <answer> yes </answer>", "yes", 1),
        ({"take": "tag"}, "yes", "yes", 0),
        ({"take": "final"}, "**Final answer: yes**", "yes", 1),
        ({"take": "boxed"}, r"so \boxed{a{b}c}", "a{b}c", 1),
        ({"take": "last_line"}, "one\ntwo\n\n", "two", 1),
        ({}, "paris", "Paris", 0),
        ({"ignore_case": True}, "paris", "Paris", 1),
        ({}, "b", ["a", "b"], 1),
        ({}, "7", 7, 1),
    ],
)
def test_exact_compares_texts(args, completion, answer, value):
    assert reward_of("exact", args, completion, answer=answer) == value


@pytest.mark.parametrize(
    ("args", "completion", "answer", "value"),
    [
        ({}, "first 3, then 1,234.50 dollars", "1234.5", 1),
        ({}, "$5", 5, 1),
        ({}, "it is 7", "He needs 3+4 = 7 apples.\n#### 7", 1),
        ({}, "it is 4", "He needs 3+4 = 7 apples.\n#### 7", 0),
        ({}, "-3", "3", 0),
        ({}, "7-3", "3", 1),
        ({}, "10 - 3", "3", 1),
        ({}, "x = - 3", "-3", 1),
        ({}, "- 3", "-3", 1),
        ({}, "2.0", "2", 1),
        ({}, "1/3", "2/6", 1),
        ({}, "0.333", "1/3", 0),
        ({"tolerance": 0.01}, "0.333", "1/3", 1),
        ({"relative_tolerance": 0.01}, "1009", "1000", 1),
        ({"relative_tolerance": 0.01}, "1011", "1000", 0),
        ({}, "1e3", "1000", 1),
        ({}, "10000000", "10000001", 0),
        ({"take": "final"}, "The answer is 5. I checked it 2 times", "5", 0),
        ({"take": "final"}, "The answer is 5.\nI checked it 2 times", "5", 1),
        ({}, "none", "5", 0),
        ({}, "5/0", "5", 0),
        ({}, "8", [7, 8], 1),
    ],
)
def test_numeric_compares_numbers(args, completion, answer, value):
    assert reward_of("numeric", args, completion, answer=answer) == value


@pytest.mark.parametrize(
    ("completion", "answer", "value"),
    [
        ("The answer is 72.", "72", 1),
        ("he has 72 apples", "... 80 - 8 = 72\n#### 72", 1),
        (r"Therefore \boxed{\frac{1}{2}}.", r"We get $\boxed{\frac12}$.", 1),
        (r"\boxed{1} no, \boxed{2}", "2", 1),
        (r"\boxed{1} no, \boxed{2}", "1", 0),
        (r"<answer>\boxed{4}</answer>", "4", 1),
        (r"\boxed{0.5}", r"\frac{1}{2}", 1),
        (r"\boxed{0.33}", r"\frac{1}{3}", 0),
        (r"\boxed{3.5}", r"3\frac{1}{2}", 1),
        (r"\boxed{1024}", "2^{10}", 1),
        (r"\boxed{\sqrt{8}}", r"2\sqrt{2}", 1),
        (r"\boxed{(x+1)^2}", "x^2+2x+1", 1),
        (r"\boxed{(x+1)^2}", "x^2+1", 0),
        (r"\boxed{(1, 2]}", "(1,2]", 1),
        (r"\boxed{[1, 2]}", "(1,2]", 0),
        (r"\boxed{(-\infty, 3)}", r"(-\infty,3)", 1),
        (r"\boxed{\{2, 1\}}", r"\{1,2\}", 1),
        (r"\boxed{(2, 1)}", "(1,2)", 0),
        (r"\boxed{12}", "12 cm", 1),
        (r"\boxed{12\,\text{cm}}", r"12\text{ cm}", 1),
        (r"\boxed{13\,\text{cm}}", r"12\text{ cm}", 0),
        (r"\boxed{90}", r"90^\circ", 1),
        (r"\boxed{50\%}", "0.5", 1),
        (r"\boxed{50}", r"50\%", 1),
        (r"\boxed{\$1,000}", "1000", 1),
        (r"\boxed{5}", "x=5", 1),
        (r"\boxed{east}", r"\text{east}", 1),
        (r"\boxed{west}", r"\text{east}", 0),
        (r"\boxed{-3}", "3", 0),
        (r"\boxed{7}", ["6", "7"], 1),
        ("The final answer is 18, since she sells 9*2.", "18", 1),
        ("The answer is 18 dollars.", "18", 1),
        ("The answer is 5 hours, since 2+3=5.", "5", 1),
        ("the answer: 18 because 9*2 is 18", "18", 1),
        ("The answer is 2 pi", "2", 0),
        ("The answer is 2 or 3", "2", 0),
        ("The answer is 2 million", "2", 0),
        (r"\boxed{2\text{ million}}", "2", 0),
        (r"\boxed{2\text{ million dollars}}", "2", 0),
        (r"\boxed{\$2\,\text{billion}}", "2", 0),
        (r"\boxed{2\text{million}}", "2", 0),
        ("It costs 2 million in all.", "2", 0),
        ("It costs 2 million in all.", "2000000", 1),
        (r"\boxed{2\text{ million}}", "2,000,000", 1),
        ("The answer is 2.5 million dollars.", "2500000", 1),
        ("The answer is 5 hundred thousand", "500,000", 1),
        (r"\boxed{24}", r"2\text{ dozen eggs}", 1),
        (r"\boxed{2\text{ hundredths}}", "200", 0),
        ("The answer is 2 million and a half", "2000000", 0),
        (r"\boxed{0}", "6.63e-34", 0),
        (r"\boxed{6.63e-34}", "6.63e-34", 1),
        (r"\boxed{0}", "0", 1),
        ("\\boxed{" * 3000, "7", 0),
        ("no idea", "7", 0),
        ("", "7", 0),
        (r"\boxed{", "7", 0),
        (r"\boxed{\frac{1}}", "7", 0),
        (r"\boxed{1/0}", "7", 0),
        (r"\boxed{(n-1)!\cdot 2}", "2(n-1)!", 1),
        (r"\boxed{\frac{(2n)!}{n!\,2^n}}", r"\frac{(2n)!}{2^n n!}", 1),
        (r"\boxed{2^{2020}-1}", "-1+2^{2020}", 1),
        (r"\boxed{2^{2^{3}}}", "256", 1),
        (r"\boxed{(5-1)!}", "24", 1),
        (r"\boxed{2020\cdot 2019!}", "2020!", 1),
        (r"\boxed{(n-1)!\cdot 3}", "2(n-1)!", 0),
        ("The answer is 17. So 18", "18", 0),
        ("The answer is 17; right? 18", "18", 0),
        (r"The answer is 17. Hmm \frac{36}{2}", "18", 0),
        ("#### 17. A=18", "18", 0),
        ("The answer is 17. So 18", "17", 1),
        ("The answer is St. Louis", "St. Louis", 1),
        ("The answer is 9, where x is 2", "9, where x is 2", 1),
        (r"\boxed{\left(2n\right)!}", "(2n)!", 1),
        (r"\boxed{2^{2020}+3^{2020}}", "3^{2020}+2^{2020}", 1),
        ("The answer is 12. Wait, that is wrong. The answer is 14.", "14", 1),
        ("The answer is 12. Wait, that is wrong. The answer is 14.", "12", 0),
        ("Final Answer: The final answer is $14$. I hope it is correct.", "14", 1),
        ("Answer: the answer is 14", "14", 1),
        ("The answer is 14. The choice is clear.", "14", 1),
        ("The answer is:\n\\[\n\\frac{150}{2}\n\\]\nas said.", "75", 1),
        ("The answer is\n$$\n75\n$$", "75", 1),
        ("The answer is therefore 75.", "75", 1),
        ("The answer is, thus, exactly 75.", "75", 1),
        ("The answer is so 75", "57", 0),
    ],
)
def test_math_compares_results_as_mathematics(completion, answer, value):
    assert reward_of("math", {}, completion, answer=answer) == value


@pytest.mark.parametrize(
    "completion",
    [
        *("**Answer: 18**", "**Final Answer: 18**", "**The answer is 18.**", "The answer is **18** dollars."),
        *("**Answer:** 18", "**Answer: 18** dollars", "**Answer**: 18. I checked 2 times", "*Answer: 18*"),
        *("The answer is 18, right?", "The answer is 18?", "The answer is 18 dollars, right?", "My answer: 18!"),
        *("The answer is **18 dollars**!", "<answer>18 dollars</answer>", r"<answer>18\text{ dollars}</answer>"),
        *(
            r"\boxed{18 dollars}",
            r"\boxed{\text{18 dollars}}",
            r"\boxed{18~\text{dollars}}",
            r"\boxed{18 square meters}",
        ),
    ],
)
def test_math_reads_a_result_without_emphasis_unit_and_the_end_of_its_sentence(completion):
    assert reward_of("math", {}, completion, answer="18") == 1
    assert reward_of("math", {}, completion.replace("18", "19"), answer="18") == 0


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        *((rf"\boxed{{18 {more}}}", "18") for more in ("dozen", "factorial", "or nineteen", "and a half", "times two")),
        *((rf"\boxed{{2 {more}}}", "2") for more in ("xy", "abc", "sin x", "log x", "million", "pi")),
        ("The answer is 18 dollars and fifty cents", "18"),
        ("The answer is **18** or **19**", "18"),
        ("**Answer: 2**3**", "23"),
        ("The answer is x**-1", "x-1"),
        (r"\boxed{3!}", "3"),
        ("The answer is 6!", "3!"),
    ],
)
def test_math_does_not_take_a_part_of_a_result_for_it(completion, answer):
    assert reward_of("math", {}, completion, answer=answer) == 0


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        *(("Final answer: The total cost is $45.", "45"), (r"Answer: The total cost is \$45.", "45")),
        *(("Answer: Tom has 12 apples.", "12"), ("**Answer: Tom has 12 apples, and is glad.**", "12")),
        *(("Answer: Janet makes $18 every day.", "18"), ("Answer: It adds up to a total of 1,800!", "1800")),
        *(("The answer is about 18.", "18"), ("Answer: approximately 18 dollars", "18")),
        *((r"The answer is roughly \frac{1}{4}", "1/4"), ("Answer: He walks around 1 1/4 miles", "1.25")),
        *(("The answer is 1/4 of the cake.", "1/4"), (r"Answer: The angle is $15^\circ$.", "15")),
        *((r"Answer: The area is \(14\) square meters.", "14"), ("Answer: He has 12, since 3*4 = 12.", "12")),
        *(("Answer: It costs $14. It was $15 before.", "14"), ("Answer: The change is -15 degrees.", "-15")),
    ],
)
def test_math_reads_the_only_number_of_a_declared_sentence(completion, answer):
    assert reward_of("math", {}, completion, answer=answer) == 1
    assert reward_of("math", {}, completion, answer=answer.replace("1", "7").replace("45", "46")) == 0


@pytest.mark.parametrize(
    "sentence",
    [
        *("Tom has 12 dozen", "Tom has 12 dozen eggs", "it is 12 factorial", "about 12 and a half", "it is 12 squared"),
        *("not 12", "she doesn't have 12", "never 12", "no 12", "more than 12", "at most 12", "up to 12"),
        *("negative 12", "ten minus 12", "half of 12", "a third of 12", "twice 12", "the square root of 12", "log 12"),
        *("Tom has 12 or thirteen", "either 12 or 13", "Tom has 12, Ann 13", "Tom has 13. Ann has 12"),
        *("it is x-12", "it is x + 12", "it is 12x", "n 12", "12 of x", "it is 2^{12}", r"a \sqrt{12}", "the 12th"),
        *("he has 12 dollars and fifty cents", "he has 12 hundredths", "one over 12", "it is 12:30", "it is 7 12/5"),
    ],
)
def test_math_does_not_take_the_number_of_a_sentence_that_means_another(sentence):
    assert reward_of("math", {}, f"The answer is {sentence}.", answer="12") == 0


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        *((completion, "110") for completion in ("The answer is 110°.", "#### 110°", r"\boxed{110°}", "It has 110°")),
        *((r"\boxed{110°}", r"110^\circ"), (r"\boxed{110^{\circ}}", "110°"), (r"\boxed{15°C}", r"15^\circ C")),
        *((r"\boxed{110€}", "110"), ("The answer is 1,110 €.", "1110"), (r"\boxed{110\text{¢}}", "110")),
        *((r"\boxed{110}", "110£"), (r"\boxed{£110}", "110£"), (r"\boxed{\frac{220}{2}€}", "110")),
    ],
)
def test_math_reads_the_sign_of_a_unit(completion, answer):
    assert reward_of("math", {}, completion, answer=answer) == 1
    assert reward_of("math", {}, completion, answer=answer.replace("1", "2")) == 0


@pytest.mark.parametrize(
    ("completion", "answer", "value"),
    [
        ("She ate 2 1/2 pies", "2.5", 1),
        ("She ate 2 1/2 pies", "1/2", 0),
        ("It fell by -2 1/2", "-2.5", 1),
        ("It fell by -2 1/2", "-1.5", 0),
        ("It is 2.5", "2 1/2", 1),
        ("It is 0.5", "2 1/2", 0),
        ("It is 1,000 1/4", "1000.25", 1),
        ("Of 2 5/3", "5/3", 1),
        ("Of 2 5/3", "11/3", 0),
        ("Line 2\n1/2", "1/2", 1),
        ("Of 2.5 1/2", "1/2", 1),
        ("Of 2 1/0", "2", 0),
    ],
)
def test_a_whole_number_and_a_fraction_below_1_are_one_number(completion, answer, value):
    assert reward_of("numeric", {}, completion, answer=answer) == value
    assert reward_of("math", {}, completion, answer=answer) == value


@pytest.mark.parametrize(
    ("result", "answer", "value"),
    [
        *(("2 1/2", answer, 1) for answer in (r"\frac{5}{2}", "2.5", r"2\frac12", "2 2/4")),
        *(("2 1/2", answer, 0) for answer in ("1/2", "1", "21/2", "2")),
        ("21/2", "2 1/2", 0),
        ("66 2/3", r"66\frac23", 1),
        ("-2 1/2", r"-\frac{5}{2}", 1),
        ("-2 1/2", r"-\frac{3}{2}", 0),
        (r"2\,1/2~\text{cups}", "2.5", 1),
        ("(1, 2 1/2)", "(1, 2.5)", 1),
        ("2 1/2 million", "2500000", 1),
        ("2 5/3 cups", "11/3", 0),
    ],
)
def test_math_reads_a_mixed_number(result, answer, value):
    assert reward_of("math", {}, rf"\boxed{{{result}}}", answer=answer) == value


@pytest.mark.parametrize(
    ("inequality", "interval", "value"),
    [
        (r"-2 \le x \le 7", "[-2,7]", 1),
        ("x>2", r"(2,\infty)", 1),
        (r"-2 < x \le 7", "[-2,7]", 0),
        ("x>3", r"(2,\infty)", 0),
        ("x<2", r"(2,\infty)", 0),
    ],
)
def test_math_compares_an_inequality_with_an_interval_on_either_side(inequality, interval, value):
    assert reward_of("math", {}, rf"\boxed{{{inequality}}}", answer=interval) == value
    assert reward_of("math", {}, rf"\boxed{{{interval}}}", answer=inequality) == value


@pytest.mark.parametrize("answer", ["3!", "6", "3"])
def test_math_reads_a_declared_factorial_also_as_an_exclamation(answer):
    assert reward_of("math", {}, "The answer is 3!", answer=answer) == 1


@pytest.mark.parametrize(
    ("args", "completion", "value"),
    [
        ({"boxed": True}, r"\boxed{7}", 1),
        ({"boxed": True}, r"\boxed{7 dollars}", 1),
        ({"boxed": True}, "The answer is 7", 0),
        ({"digits": 2}, r"\boxed{7.004}", 1),
        ({"digits": 3}, r"\boxed{7.004}", 0),
    ],
)
def test_math_may_want_a_box_and_fewer_digits(args, completion, value):
    assert reward_of("math", args, completion, answer="7") == value


@pytest.mark.parametrize(
    "result",
    [
        *("9^{9^{9}}", "9^9^9", "9**9**9", "10^{10000000}", r"\sin(10^{10^{8}})", "(9^9)!", "123456!"),
        *("(9^{9})!", r"\left(10^{9}\right)!", r"(10^{9}\cdot 1)!", "((9999!))!", r"\left(99999\right)!", "{99999}!"),
        *("(2^{99999})^{99999}", "(x+1)^{9999}", "((2^{99})^{99})^{99}"),
        *("3^{2^{99}}", "2^{100000}", "(12345)!", "(9!)!", "2^{9^{9}}!", "(6**6 - 1)!"),
        *(r"\binom{99999999}{50000000}", "5!!!", "9999!!", r"\Gamma(99999999)", r"10^{99999}\cdot10^{99999}"),
        *("1+" * 300 + "1", "(" * 60 + "1" + ")" * 60, r"\frac{1}{1+" * 25 + "1" + "}" * 25),
    ],
)
def test_math_takes_a_result_that_nobody_can_compute_as_wrong(result):
    assert reward_of("math", {}, rf"\boxed{{{result}}}", answer="301") == 0
    assert reward_of("math", {}, rf"\boxed{{{result}}}", answer=result) == 1


def test_a_result_that_keeps_math_verify_busy_is_an_error_and_the_next_answer_is_judged():
    slow = r"\boxed{(x+y+z+1)^{300}}"
    row = {"prompt": "", "answer": "(x+y+z+2)^{300}"}

    async def main():
        async with open_pool(RewardSpec("math", {}, None, {}, ".", "."), timeout_s=3.0, row=row) as pool:
            with pytest.raises(RewardError, match=r"math failed after one try: it took longer than 3 s"):
                await pool.score(row, [slow])
            (right,) = await pool.score(row, [r"\boxed{(x+y+z+2)^{300}}"])
            return right.value, pool.counts.timeouts

    assert asyncio.run(main()) == (1.0, 1)


@pytest.mark.parametrize(
    ("args", "completion", "value"),
    [
        ({}, "<think>a\nb</think>\n<answer>c</answer>", 1),
        ({}, " <think></think><answer></answer> ", 1),
        ({}, "so: <think>a</think><answer>c</answer>", 0),
        ({}, "<answer>c</answer><think>a</think>", 0),
        ({}, "<think>a</think><answer>b</answer><answer>c</answer>", 0),
        ({}, "<think>a<think>b</think><answer>c</answer>", 0),
        ({}, "<think>a</think><answer>c", 0),
        ({"boxed": True}, r"<think>a</think><answer>\boxed{c}</answer>", 1),
        ({"boxed": True}, "<think>a</think><answer>c</answer>", 0),
        ({"tags": [], "boxed": True}, r"anything \boxed{c}", 1),
        ({"tags": ["plan", "code"]}, "<plan>a</plan><code>c</code>", 1),
        ({"tags": ["plan", "code"]}, "<think>a</think><answer>c</answer>", 0),
    ],
)
def test_format_looks_at_the_tags_alone(args, completion, value):
    assert reward_of("format", args, completion) == value


@pytest.mark.parametrize(
    ("args", "completion", "value"),
    [
        ({"limit": 10}, "", 0),
        ({"limit": 10}, "a" * 5, -0.5),
        ({"limit": 10}, "a" * 30, -1),
        ({"limit": 10, "soft_limit": 6}, "a" * 6, 0),
        ({"limit": 10, "soft_limit": 6}, "a" * 8, -0.5),
        ({"limit": 10, "soft_limit": 8, "minimum": 4}, "a", -0.75),
        ({"limit": 10, "soft_limit": 8, "minimum": 4}, "a" * 4, 0),
        ({"limit": 4, "unit": "words"}, "one two  three", -0.75),
    ],
)
def test_length_falls_linearly_between_its_limits(args, completion, value):
    assert reward_of("length", args, completion) == pytest.approx(value)


@pytest.mark.parametrize(
    ("args", "completion", "row", "value"),
    [
        ({"pattern": "b+"}, "abbc", {}, 1),
        ({"pattern": "b+", "whole": True}, "abbc", {}, 0),
        ({"pattern": "A.C"}, "a\nc", {}, 0),
        ({"pattern": "A.C", "ignore_case": True}, "a\nc", {}, 1),
        ({"pattern": "= {answer}$"}, "1+1 = 2.0", {"answer": "2.0"}, 1),
        ({"pattern": "= {answer}$"}, "1+1 = 2x0", {"answer": "2.0"}, 0),
        ({"pattern": "= {answer}$"}, "1+1 = 2.0", {"answer": ["two", "2.0"]}, 1),
        ({"pattern": "= {answer}$"}, "1+1 = 2x0", {"answer": ["two", "2.0"]}, 0),
        ({"pattern": "it is {answer}", "whole": True}, "it is twofold", {"answer": ["two", "twofold"]}, 1),
        ({"pattern": "^a{2}$"}, "aa", {}, 1),
    ],
)
def test_regex_searches_a_pattern(args, completion, row, value):
    assert reward_of("regex", args, completion, **row) == value


@pytest.mark.parametrize(
    ("completion", "row", "value"),
    [
        ("B", {"answer": "B"}, 1),
        ("b", {"answer": "B"}, 1),
        ("(B)", {"answer": "B"}, 1),
        ("**B**", {"answer": "(B)"}, 1),
        ("The answer is (B) because of A.", {"answer": "B"}, 1),
        ("I think so.\nAnswer: B", {"answer": "B"}, 1),
        (r"so \boxed{\text{B}}", {"answer": "B"}, 1),
        ("<answer>B</answer>", {"answer": "B"}, 1),
        ("It is (A) or rather (B), I think", {"answer": "B"}, 1),
        ("B) Paris", PARIS, 1),
        ("B) Paris", PARIS | {"answer": 1}, 1),
        ("A) Rome", PARIS, 0),
        ("The answer is A", {"answer": "A", "choices": ["O", "A", "B", "AB"]}, 1),
        ("The answer is B", {"answer": "A", "choices": ["O", "A", "B", "AB"]}, 0),
        ("The answer is B because Paris", PARIS, 1),
        ("The correct option is B.", PARIS, 1),
        ("The correct option is B.", PARIS | {"answer": ["C", "Paris"]}, 1),
        ("The correct option is A.", PARIS | {"answer": ["C", "Paris"]}, 0),
        ("Oslo", {"answer": ["A", 2]}, 0),
        ("The correct answer is B, Paris.", PARIS, 1),
        ("Answer: B - Paris", PARIS, 1),
        ("The answer is **B**: Paris", PARIS, 1),
        ("The correct answer is **B**, because it is", PARIS, 1),
        ("Answer: **B** - Paris", PARIS, 1),
        ("**Answer: B** - Paris", PARIS, 1),
        ("The answer is $B$, as it is", PARIS, 1),
        (r"The answer is $\text{B}$, as it is", PARIS, 1),
        (r"The answer is \(B\) since it is", PARIS, 1),
        ("The correct answer is B which is Paris", PARIS, 1),
        ("The answer is B (Paris).", PARIS, 1),
        ("Rome (A) is in Italy. The answer is B (Paris).", PARIS, 1),
        ("The answer is **B** (since 3+4=7).", PARIS, 1),
        ("The answer is B; (A) is Rome", PARIS, 1),
        ("The answer is **b** (Paris)", PARIS, 1),
        ("The answer is a (rather long) text, namely (B)", PARIS, 1),
        ("The answer is a (hydrogen) bond", PARIS | {"answer": "A"}, 0),
        ("Rome (A) is not in France. The answer is Paris (B).", PARIS, 1),
        ("Paris (B) is in France. The answer is Rome.", PARIS, 0),
        ("The answer is f(B)", {"answer": "F"}, 0),
        ("The answer is **A** or **B**", {"answer": "A"}, 0),
        ("The answer is A. Wait, no. The answer is B.", {"answer": "B"}, 1),
        ("The answer is A. Wait, no. The answer is B.", {"answer": "A"}, 0),
        ("Final Answer: The final answer is B. I hope so.", {"answer": "B"}, 1),
        ("The answer is A* search", {"answer": "A"}, 0),
        ("A, or B", PARIS, 0),
        ("A dog", {"answer": "A"}, 0),
        ("", {"answer": "A"}, 0),
        ("D", PARIS, 0),
    ],
)
def test_choice_finds_the_letter(completion, row, value):
    assert reward_of("choice", {}, completion, **row) == value


@pytest.mark.parametrize(
    ("completion", "value"),
    [
        ('{"age": 3}', 1),
        ('Here:\n```json\n{"age": 3}\n```\n', 1),
        ('```\n{"age": "x"}\n```\n```\n{"age": 3}\n```', 1),
        ('```python\nage = 3\n```\nso\n```json\n{"age": 3}\n```', 1),
        ('```json\n{"age": 3}\n```\nby\n```bash\nls\n```\n', 1),
        ('```JSON\n{"age": 3, "note": "```\\n```"}\n```', 1),
        ('```json\n{"age": 3}\n```\n```json\n{"age": "x"}\n```', 0),
        ('Here: ```json\n{"age": 3}\n```', 1),
        ('```json\n{"age": 3}```', 1),
        ('1. Result:\n\n    ```json\n    {"age": 3}\n    ```\n', 1),
        ('{"age": "3"}', 0),
        ("{}", 0),
        ('{"age": 3', 0),
        ('{"age": NaN}', 0),
        ("[" * 100_000, 0),
        ("", 0),
    ],
)
def test_json_schema_validates_the_json(completion, value):
    assert reward_of("json_schema", {"schema": PERSON}, completion) == value
    assert reward_of("json_schema", {}, completion, schema=PERSON) == value


def test_json_too_deep_for_its_schema_is_wrong():
    tree = {"type": "array", "items": {"$ref": "#"}}
    assert reward_of("json_schema", {"schema": tree}, "[[]]") == 1
    assert reward_of("json_schema", {"schema": tree}, "[" * 900 + "]" * 900) == 0


def test_a_schema_in_a_row_may_be_text_and_fetches_nothing():
    assert reward_of("json_schema", {}, "3", schema='{"type": "integer"}') == 1
    assert reward_of("json_schema", {}, "1e999", schema={"multipleOf": 0.5}) == 0
    with pytest.raises(Exception, match="Unresolvable"):
        reward_of("json_schema", {}, "3", schema={"$ref": "http://127.0.0.1:1/schema.json"})


def test_random_depends_on_the_seed_of_the_answer_alone():
    call = load_reward(RewardSpec("random", {"probability": 0.25}, None, {}, ".", "."))
    assert call is not None and call.needs == []
    values = [call("", "the same answer", {}, seed) for seed in range(2000)]
    assert set(values) == {0.0, 1.0} and 300 < sum(values) < 700
    assert [call("", f"answer {seed}", {}, seed) for seed in range(2000)] == values
    assert reward_of("random", {"probability": 0}, "") == 0 and reward_of("random", {"probability": 1}, "") == 1


@pytest.mark.parametrize(
    ("name", "args", "row", "why"),
    [
        ("numeric", {}, {"answer": "none"}, "the row's answer has no number"),
        ("choice", {}, {"answer": "Z"}, "none of the choices A, B"),
        ("choice", {}, {"answer": ["A", "Z"]}, "none of the choices A, B"),
        ("choice", {}, {"answer": []}, "the row's answer is no text or number"),
        ("exact", {}, {"answer": None}, "the row's answer is no text or number: None"),
        ("exact", {}, {"answer": [None, None]}, "the row's answer is no text or number"),
        ("math", {}, {"answer": {"ground_truth": "5"}}, "the row's answer is no text or number"),
        ("math", {}, {"answer": math.nan}, "the row's answer is no text or number: nan"),
        ("math", {}, {"answer": " "}, "the row's answer is empty"),
        ("numeric", {}, {"answer": {"ground_truth": "5"}}, "the row's answer is no text or number"),
        ("regex", {"pattern": "{answer}"}, {}, "the row has no answer"),
        ("regex", {"pattern": "{answer}"}, {"answer": []}, "the row has no answer"),
        ("json_schema", {}, {}, "needs a schema: reward.args.schema, or a value `schema` of each row"),
    ],
)
def test_a_row_that_cannot_be_judged_is_an_error_and_not_a_0(name, args, row, why):
    with pytest.raises(ValueError, match=why):
        reward_of(name, args, "A", **row)


@pytest.mark.parametrize(
    ("name", "args", "begin", "repeated", "end"),
    [
        ("exact", {"take": "final"}, "", "<answer>", ""),
        ("numeric", {"take": "final"}, "#### ", "\n", ""),
        ("numeric", {"take": "final"}, "", "\\boxed{", ""),
        ("math", {}, "#### 1", " ", "3"),
        ("math", {}, "Answer: it is ", "a total of ", "13"),
        ("numeric", {}, "", "2 1/", "13"),
        ("json_schema", {"schema": PERSON}, "```", "\n", ""),
        ("format", {}, "", "<think>", ""),
        ("choice", {}, "The answer is B", "}", "x"),
    ],
)
def test_an_answer_that_repeats_a_mark_until_it_is_cut_off_is_wrong(name, args, begin, repeated, end):
    """In time that grows with its length: with its square it would exceed the deadline."""
    completion = begin + repeated * 200_000 + end

    async def main():
        async with open_pool(RewardSpec(name, args, None, {}, ".", "."), timeout_s=60.0) as pool:
            return await pool.score({"prompt": "", "answer": "A" if name == "choice" else "12"}, [completion])

    assert [reward.value for reward in asyncio.run(main())] == [0.0]


def test_a_result_that_is_only_announced_is_none():
    assert reward_of("exact", {"take": "final"}, "The answer is 5.\nFinal answer: ", answer="5") == 1
