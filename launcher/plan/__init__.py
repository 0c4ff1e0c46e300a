"""The plan: what a run will be, before anything is started. A dry run prints it, the launcher executes it."""

from launcher.plan.brief import brief
from launcher.plan.build import build_plan
from launcher.plan.plan import Plan
from launcher.plan.render import render

__all__ = ["Plan", "brief", "build_plan", "render"]
