"""What `try` prints of a row: exact token ids and texts, what is trained on, and the reward with its parts."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from statistics import fmean, pstdev
from typing import Any

from areal_like.config.problems import plural
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.votes import VoteRule
from areal_like.observe.learnability import judge
from areal_like.rollout.conversation_facts import CUT_OFF, agent_rewards, numbered
from areal_like.rollout.episodes.try_rows import TriedGroup
from areal_like.rollout.step_metrics import group_answers
from areal_like.rollout.trajectory import Trajectory
from areal_like.serving.partial_sample import ABORT

REPORT = "try.txt"
"""The file of a run directory to which its process of `try` writes."""
NO_ANSWERS = "no row has answers"
ENDS = {CUT_OFF: "cut off", ABORT: "ends without an eos_token"}
MASKED = "trained on, 0 tokens: nothing, as it is cut off (actor.mask_truncated_completions)"


async def report(groups: AsyncIterator[TriedGroup], rule: VoteRule, show: Callable[[str], None]) -> bool:
    """Shows the rows and the verdict; returns whether any row has answers."""
    facts = []
    async for group in groups:
        for line in group_report(group, rule):
            show(line)
        if group.facts:
            facts.append(group_answers(group.facts, rule))
    verdict = judge(facts)
    if not verdict.answers:
        return False
    show("")
    show(f"{verdict.signal}: {verdict.facts_text}")
    for advice in verdict.advice:
        show(f"  {advice.key}: {advice.text}")
    return True


def group_report(group: TriedGroup, rule: VoteRule) -> Iterator[str]:
    yield group.place
    if group.error:
        yield f"  no answers: {group.error}"
    prompt = None
    numbers = numbered([answer.conversation for answer in group.trajectories])
    facts: dict[int, list[dict[str, Any]]] = {}
    for place, (number, answer) in enumerate(zip(numbers, group.trajectories, strict=True)):
        fact = {"reward": answer.reward, "agent": answer.agent, "run": answer.run}
        facts.setdefault(number, []).append(fact)
        ids = answer.prompt_ids.tolist()
        if ids != prompt:
            prompt = ids
            yield f"  prompt, {plural(len(ids), 'token')}: {_text(group.tokenizer, ids)}"
            yield f"    {_ids(ids)}"
        part, parts = numbers[: place + 1].count(number), numbers.count(number)
        whose = f" ({answer.agent})" if answer.agent else ""
        name = f"answer {number + 1}{f', sample {part} of {parts}' if parts > 1 else ''}{whose}"
        yield from _answer(name, answer, group.tokenizer, rule)
    by_agent = [agent_rewards(samples) for samples in facts.values()]
    if rewards := [fmean(each.values()) for each in by_agent if each]:
        low, high = min(rewards), max(rewards)
        spread = f"from {low:g} to {high:g}, deviation {pstdev(rewards):.3g}"
        yield f"  spread of rewards: {spread if low < high else f'none, all are {low:g}'}"


def _answer(name: str, answer: Trajectory, tokenizer: TextTokenizer, rule: VoteRule) -> Iterator[str]:
    ids = answer.token_ids[len(answer.prompt_ids) :].tolist()
    reward = "none, it failed" if answer.reward is None else f"{answer.reward:g}"
    parts = ", ".join(f"{name} {value:g}" for name, value in answer.rewards.items())
    finish = ENDS.get(answer.finish) or f"ends by {answer.finish}"
    yield f"  {name}: reward {reward}{f' ({parts})' if parts else ''}, {finish}: {_text(tokenizer, ids)}"
    yield f"    {_ids(ids)}"
    trained = answer.token_ids[answer.loss_mask.astype(bool)].tolist()
    if trained and answer.finish == CUT_OFF and rule.masks_truncated:
        yield f"    {MASKED}"
        return
    which = "nothing" if not trained else "the whole answer" if trained == ids else _text(tokenizer, trained)
    yield f"    trained on, {plural(len(trained), 'token')}: {which}"


def _text(tokenizer: TextTokenizer, ids: Sequence[int]) -> str:
    """Several lines stand below each other, each behind a bar."""
    text = tokenizer.decode(ids, skip_special=False)
    return "".join(f"\n    | {line}" for line in text.split("\n")) if "\n" in text else repr(text)


def _ids(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))
