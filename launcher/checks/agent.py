"""What the program of an agent needs and this machine lacks."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from areal_like.config.checks.agent import runs_agents
from areal_like.config.experiment import GRPOConfig
from areal_like.config.problems import Problem
from launcher.plan.host import HostInfo

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


def missing_program(config: "BaseExperimentConfig", here: HostInfo) -> Iterator[Problem]:
    if not isinstance(config, GRPOConfig) or not runs_agents(config) or not config.agent.command:
        return
    program = config.agent.command[0]
    if shutil.which(program) is None and shutil.which(program, path=str(Path(sys.executable).parent)) is None:
        yield Problem("agent.command", f"there is no program {program} here; name one in the PATH, or by its path")
