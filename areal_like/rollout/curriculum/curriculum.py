"""The curriculum of a run: its sampler and its gates, and their state in a checkpoint."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from areal_like.config.problems import ConfigError, Problem
from areal_like.rollout.curriculum.admission import Admission
from areal_like.rollout.curriculum.base import RowSampler, StatefulGate
from areal_like.rollout.curriculum.pools import DifficultyPools
from areal_like.rollout.curriculum.prompts import Prompts, prompts_of, unmixed
from areal_like.rollout.curriculum.scored_group import ScoredGroup, scored_group
from areal_like.rollout.curriculum.settings import CurriculumSettings, curriculum_settings
from areal_like.rollout.groups import Group

FORGET = "set recover.skip_curriculum=true to begin without what it has seen"


class CurriculumState(NamedTuple):
    """For a checkpoint: the rows that are drawn, and what sampler and gates have seen."""

    drawn: dict[str, Any]
    sampler: bytes
    gates: list[Any]


@dataclass
class Curriculum:
    """`sampler`: None where rows come in the order of the data. A group is trained on if every gate admits it."""

    sampler: RowSampler | None = None
    admission: Admission = field(default_factory=Admission)
    gates: Sequence[StatefulGate] = ()
    prompts: Prompts | None = None
    """None: each row is one."""
    _counts: Counter[str] = field(default_factory=Counter)
    """Since the last metrics."""

    def admits(self, group: Group, facts: Sequence[dict[str, Any]]) -> bool:
        if not self.gates and not self.admission.is_limited:
            return True
        finished = self._scored(group, facts)
        return self.admission.admits(finished) and all([gate.admits(finished) for gate in self.gates])

    def observe(self, group: Group) -> None:
        """A finished group shows how difficult its row is."""
        if self.sampler is None and not self.gates and not self.admission.is_limited:
            return
        finished = self._scored(group, group.facts)
        self._count("finished", finished.environment)
        if self.sampler is not None:
            self.sampler.observe(finished)
        for gate in self.gates:
            gate.observe(finished)

    def left_out(self, group: Group, reason: str) -> None:
        """A finished group is not trained on."""
        if reason == "difficulty":
            finished = self._scored(group, group.facts)
            if side := self.admission.refusal(finished):
                self._count(f"filtered_{side}", finished.environment)

    def _scored(self, group: Group, facts: Sequence[dict[str, Any]]) -> ScoredGroup:
        return scored_group(group.row if self.prompts is None else self.prompts.first(group.row), facts)

    def _count(self, name: str, environment: str) -> None:
        """In all, and of the environment where there are several."""
        self._counts[f"curriculum/{name}"] += 1
        if environment and self.prompts is not None and len(self.prompts.names) > 1:
            self._counts[f"env/{environment}/{name}"] += 1

    def metrics(self) -> dict[str, float]:
        """Counts are those since the previous step."""
        sampler = {} if self.sampler is None else self.sampler.metrics()
        if self.admission.is_limited:
            sampler |= {f"curriculum/filtered_{side}": 0.0 for side in ("easy", "hard")}
        sampler |= {name: float(count) for name, count in self._counts.items()}
        self._counts.clear()
        return sampler | {name: value for gate in self.gates for name, value in gate.metrics().items()}

    def state(self, drawn: dict[str, Any]) -> CurriculumState:
        sampler = b"" if self.sampler is None else self.sampler.state()
        return CurriculumState(drawn, sampler, [gate.state() for gate in self.gates])

    def resume(self, state: CurriculumState, step: int) -> None:
        if self.sampler is not None and state.sampler:
            self.sampler.resume(state.sampler, step)
        for gate, saved in zip(self.gates, state.gates, strict=False):
            gate.resume(saved)

    @property
    def names(self) -> dict[str, Any]:
        """Whose state a checkpoint has."""
        return {
            "sampler": None if self.sampler is None else self.sampler.name,
            "gates": [gate.name for gate in self.gates],
        }

    def check(self, saved: dict[str, Any]) -> None:
        """Raises ConfigError if a checkpoint has the state of another sampler or of other gates. It need not have any,
        nor does the run."""
        for part, name in self.names.items():
            if name and saved[part] and name != saved[part]:
                message = f"is {name}, and the checkpoint has the state of {saved[part]}"
                raise ConfigError([Problem(f"curriculum.{part}", f"{message}; use the same, or {FORGET}")])


def curriculum_of(
    settings: CurriculumSettings,
    rows: int | Prompts,
    own_sampler: RowSampler | None = None,
    own_gates: Sequence[StatefulGate] = (),
    labels: str = "",
) -> Curriculum:
    """`rows`: their number, where each is a prompt. `labels`: a letter for each row, from the results of an earlier
    run; empty: without."""
    prompts = unmixed(rows) if isinstance(rows, int) else rows
    pools = DifficultyPools(settings, prompts) if settings.draws else None
    if pools is not None and labels:
        pools.start(labels)
    return Curriculum(own_sampler or pools, settings.admission, own_gates, prompts)


def curriculum_for(
    config: Any, train: Mapping[str, Any], own_sampler: RowSampler | None, own_gates: Sequence[StatefulGate]
) -> Curriculum:
    """`train` is what a worker has reported of the training rows."""
    prompts = prompts_of(config, train["rows"], train.get("environments", ()))
    return curriculum_of(curriculum_settings(config), prompts, own_sampler, own_gates, train.get("difficulty", ""))
