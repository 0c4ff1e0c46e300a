"""The environments of tests/verifiers_packages, played by the real package verifiers."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from areal_like.config.sections.agent import AgentConfig
from areal_like.config.sections.environments import EnvironmentsConfig
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.verifiers.environment_process import HostedPackage
from areal_like.models import model_folder
from areal_like.rollout.episodes.conversation import ConversationRules
from areal_like.rollout.episodes.episode import Episode, WorkerTools
from areal_like.rollout.episodes.workflows.verifiers import VerifiersEnvironment
from areal_like.rollout.trajectory import Trajectory
from tests.support.agents import SAMPLING, SampledTexts, open_session
from tests.support.chat_models import PLAIN
from tests.support.episode_parts import Rewards
from tests.support.ring_parts import lease

VARIABLE = "AREAL_LIKE_VERIFIERS_PYTHON"
PACKAGES = Path(__file__).parents[1] / "verifiers_packages"


def require_verifiers(generation: int = 0) -> str:
    """The Python with verifiers 0.1, or 0.4 beside it. Where there is none the test is skipped, and fails in CI."""
    python = os.environ.get(VARIABLE, "")
    if generation == 1:
        python = str(Path(python).parents[1] / "v1" / "bin" / "python") if python else ""
    if not os.access(python, os.X_OK):
        missing = f"no Python with verifiers: `make verifiers` makes one; name it in {VARIABLE}"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    assert python != sys.executable
    return python


def package(name: str, **args: object) -> HostedPackage:
    python = require_verifiers(int(name.startswith("v1")))
    return HostedPackage(f"verifiers:tests/{name}", dict(args), python, (str(PACKAGES), str(PACKAGES)))


class Player:
    """A worker's parts in this process, over an engine that gives texts."""

    def __init__(
        self, package: HostedPackage, folder: Path, failed_reward: float | None = None, **settings: Any
    ) -> None:
        if not (folder / "model").exists():
            shutil.copytree(model_folder("builtin:tiny-tools"), folder / "model")
            (folder / "model" / "chat_template.jinja").write_text(PLAIN)
        self.package, self.episodes = package, list[Episode]()
        self.engine = SampledTexts(TextTokenizer(folder / "model"))
        own = EnvironmentsConfig(**{"max_memory_gb": 20.0, **settings})
        self.environment = VerifiersEnvironment(package, own, AgentConfig(failed_reward=failed_reward))  # type: ignore[call-arg]
        self.tools = WorkerTools(
            *(self.engine.tokenizer, self.engine, Rewards(), False, False, 0.5),
            conversation_rules=ConversationRules(),
            gateway=self.engine.gateway,
        )

    async def play(self, row: dict[str, Any], *texts: Any, n: int = 1) -> list[Trajectory]:
        """A group of `n`, of which half may fail. The texts are sampled in their order."""
        self.engine.texts += texts
        return await self.environment.run(self.episode(n), row) or []

    def episode(self, n: int = 1) -> Episode:
        self.episodes.append(Episode(self.tools, lease(0, "here", n=n, row_hash="0") | {"sampling": SAMPLING}))
        return self.episodes[-1]

    @property
    def counts(self) -> dict[str, int]:
        return self.tools.environments.counts

    async def close(self) -> None:
        await self.environment.close()
        await self.engine.gateway.close()


def played(package: HostedPackage, script: Callable[[Player], Awaitable[None]], folder: Path, **settings: Any) -> None:
    """One process for the rows and all groups of a test."""

    async def run() -> None:
        player = Player(package, folder, **settings)
        try:
            await script(player)
        finally:
            await player.close()

    asyncio.run(run())


class PlayedGroup(NamedTuple):
    """A row, and the texts that are sampled for the `n` episodes of its group."""

    package: HostedPackage
    row: dict[str, Any]
    texts: Sequence[str]
    n: int

    @property
    def request(self) -> dict[str, Any]:
        module = self.package.name.rpartition("/")[2]
        return {"module": module, "args": self.package.args, "row": self.row, "n": self.n}


async def by_own_runner(engine: SampledTexts, groups: Sequence[PlayedGroup]) -> list[list[dict[str, Any]]]:
    """What verifiers itself gives for the same texts, of each group."""
    engine.texts += [text for group in groups for text in group.texts]
    async with open_session(engine) as (_, endpoint):
        request = {"base_url": endpoint.base_url, "key": endpoint.key, "groups": [each.request for each in groups]}
        command = [str(groups[0].package.python), str(PACKAGES / "own_runner.py"), json.dumps(request)]
        bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, env=bare)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.partition("results: ")[2]))
