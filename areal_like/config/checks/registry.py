"""What a check is, and how checks are run: where a configuration is loaded, planned, started, and in a worker.

The checks themselves stand in tuples, in the order of the text that shows their problems.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from areal_like.config.problems import Problem, Stage

Facts = Mapping[str, Any]
"""Name -> what is known of a run, such as its configuration or its machine. A fact that is not known is absent."""


class Check(NamedTuple):
    """`run` gets the facts that its parameters name, and yields problems, of stage `stage` all. It runs where these
    facts are known; one whose parameter has a default may be absent."""

    name: str
    stage: Stage
    run: Callable[..., Iterable[Problem]]

    @property
    def parameters(self) -> tuple[str, ...]:
        code = self.run.__code__
        return tuple(code.co_varnames[: code.co_argcount])

    @property
    def needs(self) -> frozenset[str]:
        """The facts without which it does not run."""
        optional = len(self.run.__defaults__ or ())
        return frozenset(self.parameters[: len(self.parameters) - optional])


def run_checks(checks: Sequence[Check], facts: Facts, *stages: Stage) -> list[Problem]:
    """The problems of these stages, in the order of the checks; without those whose needs are not known."""
    found: list[Problem] = []
    for check in checks:
        if check.stage in stages and check.needs <= facts.keys():
            known = {name: facts[name] for name in check.parameters if name in facts}
            found += [replace(problem, stage=check.stage) for problem in check.run(**known)]
    return found


def not_following(problems: Sequence[Problem]) -> list[Problem]:
    """Without those that involve a key which has a problem of its own."""
    wrong = {problem.key for problem in problems}
    return [problem for problem in problems if wrong.isdisjoint(problem.also)]
