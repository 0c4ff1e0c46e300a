"""What `try` prints of a row: exact token ids and texts, what is trained on, and the reward with its parts."""

from collections.abc import Iterator, Sequence

from areal_like.config.problems import plural
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.votes import VoteRule
from areal_like.observe.learnability import Verdict, judge
from areal_like.rollout.episodes.trial import TriedGroup
from areal_like.rollout.step_metrics import answer_facts
from areal_like.rollout.trajectory import Trajectory


def group_report(group: TriedGroup, tokenizer: TextTokenizer) -> Iterator[str]:
    yield group.place
    if group.error:
        yield f"  no answers: {group.error}"
    prompt = None
    for number, answer in enumerate(group.trajectories, 1):
        ids = answer.prompt_ids.tolist()
        if ids != prompt:
            prompt = ids
            yield f"  prompt, {plural(len(ids), 'token')}: {_text(tokenizer, ids)}"
            yield f"    {_ids(ids)}"
        yield from _answer(number, answer, tokenizer)


def verdict_of(groups: Sequence[TriedGroup], rule: VoteRule) -> Verdict:
    return judge([[answer_facts(fact, rule) for fact in group.facts] for group in groups if group.facts])


def _answer(number: int, answer: Trajectory, tokenizer: TextTokenizer) -> Iterator[str]:
    ids = answer.token_ids[len(answer.prompt_ids) :].tolist()
    reward = "none, it failed" if answer.reward is None else f"{answer.reward:g}"
    parts = ", ".join(f"{name} {value:g}" for name, value in answer.rewards.items())
    finish = "cut off" if answer.finish == "length" else f"ends by {answer.finish}"
    yield f"  answer {number}: reward {reward}{f' ({parts})' if parts else ''}, {finish}: {_text(tokenizer, ids)}"
    yield f"    {_ids(ids)}"
    trained = answer.token_ids[answer.loss_mask.astype(bool)].tolist()
    which = "nothing" if not trained else "the whole answer" if trained == ids else _text(tokenizer, trained)
    yield f"    trained on, {plural(len(trained), 'token')}: {which}"


def _text(tokenizer: TextTokenizer, ids: Sequence[int]) -> str:
    return repr(tokenizer.decode(ids, skip_special=False))


def _ids(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))
