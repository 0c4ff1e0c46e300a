"""Resolves `allocation_mode` and the backend keys to an allocation, or reports all problems."""

from collections.abc import Mapping
from dataclasses import replace

from areal_like.config.allocation import auto, capacity, compatibility
from areal_like.config.allocation.base import (
    Allocation,
    AllocationMode,
    BackendSpec,
    ClusterSize,
    ParallelStrategy,
)
from areal_like.config.allocation.grammar import AllocationSyntaxError, parse_mode, parse_server, parse_trainer
from areal_like.config.allocation.machine import Machine
from areal_like.config.engines import example_engine
from areal_like.config.problems import Problem

MODE_KEY = "allocation_mode"


def resolve(
    allocation_mode: str,
    rollout_backend: str | None,
    train_backends: Mapping[str, str],
    cluster: ClusterSize,
    machine: Machine,
    *,
    servers_on_cpu: bool = False,
    reserved: int = 0,
) -> tuple[Allocation | None, list[Problem]]:
    """The allocation and all problems; the allocation is None if there is one.

    `rollout_backend` is None if the experiment starts no servers. `train_backends` gives the `.backend` of each
    model by its section ("actor", "ref", "critic", or "model"); the trainer is `actor`, else `model`.
    `servers_on_cpu`: servers take no GPU. `reserved`: GPUs that sizes left to `auto` do not take.
    """
    task = _Resolution(allocation_mode, rollout_backend, train_backends)
    if MODE_KEY not in task.unsure:
        task.combine()
        devices = replace(auto.devices_of(cluster, machine), reserved=reserved)
        task.fill(devices, machine, servers_on_cpu)
    if task.problems:
        return None, task.problems
    fixed = task.fixed_keys()
    return capacity.check_capacity(task.allocation(), cluster, machine, task.sizes_key, servers_on_cpu, fixed), []


class _Resolution:
    """The steps of one `resolve`, and their results so far.

    Roles are "rollout", "actor" (the trainer: section `actor` or `model`), "ref" and "critic".
    """

    def __init__(self, allocation_mode: str, rollout_backend: str | None, train_backends: Mapping[str, str]) -> None:
        trainer = "actor" if "actor" in train_backends else "model"
        backends = {"rollout": rollout_backend, "actor": train_backends.get(trainer)}
        backends |= {role: train_backends.get(role) for role in ("ref", "critic")}
        self.keys = {role: f"{role}.backend" for role in backends} | {"actor": f"{trainer}.backend"}
        self.problems: list[Problem] = []
        self.unsure: set[str] = set()
        """Keys whose value is invalid, or contradicts another key."""
        self.sizes_key = dict(self.keys)
        """Role -> the key that sets its sizes."""
        self.reasons: dict[str, str] = {}
        self.parallels: dict[str, ParallelStrategy] = {}
        self.mode = AllocationMode(keyword="auto")
        try:
            self.mode = parse_mode(allocation_mode)
        except AllocationSyntaxError as error:
            self._unreadable(MODE_KEY, error)
        self.parts = {role: self._own(role, text) for role, text in backends.items() if text is not None}

    def _own(self, role: str, text: str) -> BackendSpec:
        try:
            part = parse_server(text) if role == "rollout" else parse_trainer(text)
        except AllocationSyntaxError as error:
            self._unreadable(self.keys[role], error)
            return BackendSpec()
        if part.backend:
            self.problems += compatibility.impossible_sizes(part, part.backend, self.keys[role])
        return part

    def _unreadable(self, key: str, error: AllocationSyntaxError) -> None:
        self.unsure.add(key)
        self.problems.append(Problem(key, str(error)))

    def combine(self) -> None:
        """Completes the backend keys by `allocation_mode`."""
        mode = self.mode
        if mode.keyword == "manual":
            self._require_sizes()
        if mode.colocated:
            self.problems.append(compatibility.colocation_problem(mode, MODE_KEY))
        if mode.rollout:
            self._apply_mode("rollout", mode.rollout)
        if mode.train:
            self._apply_mode("actor", mode.train)
        elif mode.rollout and "actor" in self.parts:
            self._without_trainer(mode, self.parts["actor"])

    def _require_sizes(self) -> None:
        for role, example in (("rollout", example_engine()), ("actor", "fsdp")):
            key, part = self.keys[role], self.parts.get(role)
            if part is None or part.dims or key in self.unsure:
                continue
            text = (
                f"{key}={part} has no sizes, but {MODE_KEY}=manual takes everything from the backend keys. "
                f"Write a name with sizes ({part.backend or example}:d1), or {MODE_KEY}=auto"
            )
            self.problems.append(Problem(key, text, also=(MODE_KEY,)))
            self.unsure.add(key)

    def _apply_mode(self, role: str, from_mode: BackendSpec) -> None:
        key, own = self.keys[role], self.parts.get(role)
        if own is None:
            self._nothing_to_run(role, from_mode)
        elif compatibility.specs_differ(own, from_mode):
            self.problems.append(compatibility.contradiction_problem(key, own, MODE_KEY, self.mode, from_mode))
            self.unsure.add(key)
        elif own.dims is None:
            part = self.parts[role] = compatibility.merge_specs(own, from_mode)
            self.sizes_key[role] = MODE_KEY
            self.reasons[key] = f"{MODE_KEY}={self.mode}"
            backend = part.backend or auto.choose_trainer(part)[0]
            also = (key,) if own.backend and not from_mode.backend else ()
            self.problems += compatibility.impossible_sizes(part, backend, MODE_KEY, also)

    def _nothing_to_run(self, role: str, from_mode: BackendSpec) -> None:
        rest = self.mode.train if role == "rollout" else self.mode.rollout
        runs = "starts no servers" if role == "rollout" else "trains no model"
        text = (
            f"{self.mode} gives devices to {from_mode}, but this experiment {runs}. Write {MODE_KEY}={rest or 'auto'}"
        )
        self.problems.append(Problem(MODE_KEY, text))

    def _without_trainer(self, mode: AllocationMode, own: BackendSpec) -> None:
        key = self.keys["actor"]
        if own.dims is None:
            self.reasons[key] = f"{MODE_KEY}={mode} names no trainer: nothing is trained"
            self.parts = {role: part for role, part in self.parts.items() if role == "rollout"}
        elif mode.client:
            text = (
                f"{key}={own} is a trainer, but {MODE_KEY}={mode} trains nothing. "
                f"Write {key}=auto, or {MODE_KEY}={mode.rollout}+{own}"
            )
            self.problems.append(Problem(key, text, also=(MODE_KEY,)))

    def fill(self, devices: auto.Devices, machine: Machine, servers_on_cpu: bool) -> None:
        """Fills in names, then sizes, then the models that follow the trainer."""
        why: dict[str, list[str]] = {"rollout": [], "actor": []}
        named = {role: part for role, part in self.parts.items() if role in why}
        for role, part in named.items():
            if part.backend is None:
                servers = auto.choose_server(devices, machine.engines, servers_on_cpu)
                name, reason = servers if role == "rollout" else auto.choose_trainer(part)
                named[role] = replace(part, backend=name)
                why[role].append(reason)
        for role, part in named.items():
            key, other = self.keys[role], named.get("actor" if role == "rollout" else "rollout")
            if part.dims:
                why[role].insert(0, self.reasons.get(key, f"as set in {key}"))
                self.parallels[role] = ParallelStrategy.of(part)
            else:
                sized, reason = auto.choose_size(role, part, other, devices, servers_on_cpu)
                why[role].append(reason)
                self.parallels[role] = ParallelStrategy.of(sized)
            self.reasons[key] = "; ".join(why[role])
        if "actor" in named and self.keys["actor"] not in self.unsure:
            for role in ("ref", "critic"):
                if role in self.parts:
                    self._follow(role, self.parts[role], self.parallels["actor"])

    def _follow(self, role: str, own: BackendSpec, actor: ParallelStrategy) -> None:
        key, actor_key = self.keys[role], self.keys["actor"]
        part = own if own.dims else parse_trainer(f"{own.backend or actor.backend}:{actor.dims}")
        self.parallels[role] = ParallelStrategy.of(part)
        if not own.dims:
            self.reasons[key] = f"runs in the processes of {actor_key}, with its sizes"
            if own.backend and own.backend != actor.backend:
                self.problems += compatibility.impossible_sizes(part, own.backend, key, (actor_key,))
            return
        self.reasons[key] = f"as set in {key}"
        if own.dims.world_size != actor.world_size:
            text = (
                f"{key}={own} takes {compatibility.devices(own.dims.world_size)}, but {role} runs in the processes of "
                f"{actor_key}={actor}, which are {actor.world_size}. Write {key}=auto, or sizes that multiply to "
                f"{actor.world_size}"
            )
            self.problems.append(Problem(key, text, also=(actor_key,)))

    def fixed_keys(self) -> list[str]:
        """The keys that set sizes: with `auto` for each of them the machine determines the sizes."""
        keys = [self.sizes_key[role] for role, part in self.parts.items() if part.dims]
        return list(dict.fromkeys([MODE_KEY, *keys] if self.mode.keyword == "manual" else keys))

    def allocation(self) -> Allocation:
        named = [role for role in self.parallels if role in ("rollout", "actor") or self.parts[role].backend]
        lost: list[Problem] = []
        for role in named:
            key, own_key = self.sizes_key[role], self.keys[role]
            lost += compatibility.unsupported(self.parallels[role], key, (own_key,) if own_key != key else ())
        return Allocation(
            rollout=self.parallels.get("rollout"),
            actor=self.parallels.get("actor"),
            ref=self.parallels.get("ref"),
            critic=self.parallels.get("critic"),
            eval_only=self.mode.client is not None,
            reasons=self.reasons,
            cannot_start=tuple(lost),
        )
