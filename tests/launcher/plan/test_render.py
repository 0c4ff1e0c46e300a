"""The plan as text."""

import pytest

from launcher.plan.render import render
from launcher.plan.render_base import value_text
from launcher.plan.render_processes import ranges
from tests.support.planning import BIG_MODEL, plan_of

TITLES = ("a step", "resolved (auto)", "settings that differ from the default", "processes", "memory", "ports", "next")


def lines_of(*overrides, width=110, **rest):
    return render(plan_of("grpo", *overrides, **rest), width=width).splitlines()


def section(lines, title):
    """The lines below a heading, to the next empty one."""
    start = next(index for index, line in enumerate(lines) if line == title or line.startswith(f"{title} ("))
    end = next((index for index in range(start, len(lines)) if not lines[index]), len(lines))
    return "\n".join(lines[start + 1 : end])


def test_sections_are_in_order_and_next_is_last():
    lines = lines_of()
    places = [lines.index(title) for title in TITLES]
    assert places == sorted(places)
    assert lines[0] == "grpo: grpo-addition/r0001"


def test_obstacles_to_a_start_are_listed_first():
    lines = lines_of("cluster.name_resolve.type=memory", "launcher.env_file=[no.env]", "actor.dtype=bfloat16")
    first = next(index for index, line in enumerate(lines) if line.startswith("cannot start here"))
    assert first < next(index for index, line in enumerate(lines) if line.startswith("warnings"))
    assert first < lines.index("a step")
    assert "exit code 2" in section(lines, "next")


@pytest.mark.parametrize("width", [60, 80, 110, 200])
def test_prose_and_tables_stay_within_the_width(width):
    lines = lines_of("cluster.name_resolve.type=memory", "actor.dtype=bfloat16", width=width)
    for title in ("cannot start here", "warnings", "a step"):
        assert all(len(line) <= width for line in section(lines, title).splitlines())


def test_colour_only_when_requested():
    plan = plan_of("grpo", "cluster.name_resolve.type=memory")
    assert "\033[" not in render(plan)
    assert "\033[" in render(plan, color=True)


def test_colour_changes_nothing_else():
    import re

    plan = plan_of("grpo", "cluster.name_resolve.type=memory")
    assert re.sub(r"\033\[\d+m", "", render(plan, color=True)) == render(plan)


def test_a_setting_shows_its_source_value_and_old_value():
    text = section(lines_of("actor.optimizer.lr=1e-4", width=200), "settings that differ from the default")
    (line,) = (line for line in text.splitlines() if line.startswith("  actor.optimizer.lr "))
    assert "= 0.0001" in line
    assert "override actor.optimizer.lr=1e-4, in place of 0.0003 (" in line
    assert line.endswith("default 2e-05")


def test_commands_can_be_copied():
    text, run_dir = section(lines_of(width=400), "processes"), "/nowhere/runs/grpo-addition/r0001"
    assert f"/env/bin/python -m areal_like.serving --run-dir {run_dir} --index 0" in text
    assert "AREAL_LIKE_TOKEN='<secret>'" in text


def test_many_processes_are_folded():
    shape = ("cluster=slurm", "cluster.n_nodes=16", "cluster.n_gpus_per_node=8", *BIG_MODEL)
    text = section(lines_of(*shape, "rollout.backend=vllm:d64", "actor.backend=fsdp:d64", width=120), "processes")
    assert "server/0..7" in text
    assert "trainer/56..63" in text
    assert "GPUs 0-7" in text
    assert len(text.splitlines()) < 70


def test_the_script_of_slurm_is_shown_whole():
    shape = ("cluster=slurm", "cluster.n_gpus_per_node=2", *BIG_MODEL)
    plan = plan_of("grpo", *shape)
    text = render(plan)
    for line in plan.cluster["script"].splitlines():
        assert line in text


def test_addresses_of_attached_servers_are_shown():
    assert "generation by 10.0.0.1:80" in render(plan_of("grpo", "rollout.server_addresses=['10.0.0.1:80']"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        ("", '""'),
        (0.1, "0.1"),
        ([1, 2], "[1, 2]"),
        ([{"a": ""}], '[{a: ""}]'),
        ("x" * 50, "x" * 31 + "..."),
    ],
)
def test_values_are_formatted(value, text):
    assert value_text(value) == text


def test_ranges_of_indices_are_shortened():
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert ranges([]) == ""
