"""Start-up time of the command line with a warm page cache, compared with Python and plain Hydra.

    python tests/bench/bench_config.py [--repeats 5] [--output build/bench/config.json]

Commands are interleaved, so that other load affects all of them. It never fails because of a time.
"""

import argparse
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from areal_like.config.describe.yaml_text import to_yaml  # noqa: E402
from areal_like.config.experiment import EXPERIMENTS  # noqa: E402
from areal_like.config.load import load  # noqa: E402
from areal_like.config.loaded import Loaded  # noqa: E402
from areal_like.config.schema import Schema  # noqa: E402
from areal_like.config.sources.library import data_folder  # noqa: E402
from tests.bench import plain_hydra  # noqa: E402
from tests.bench.report_file import add_output, write_report  # noqa: E402

CONFIG = "grpo.yaml"
PYTHON, PLAIN, PLAIN_OVERRIDE = "python -c pass", "plain Hydra", "plain Hydra, one override"


@dataclass
class Command:
    """A command and its measurements. `hydra` names the plain composition that does the same work."""

    name: str
    words: list[str]
    hydra: str = PLAIN
    aim_s: float | None = None
    exit_code: int = 0
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


def commands(folder: Path) -> list[Command]:
    launcher = ["-m", "launcher", "--config", CONFIG]
    plain = [plain_hydra.__file__, str(folder), CONFIG]
    return [
        Command(PYTHON, ["-c", "pass"]),
        Command(PLAIN, plain),
        Command(PLAIN_OVERRIDE, [*plain, "actor.optimizer.lr=1"]),
        Command("--help", ["-m", "launcher", "--help"], aim_s=0.15),
        Command("--dry-run", [*launcher, "--dry-run"], aim_s=0.5),
        Command("--dry-run=json", [*launcher, "--dry-run=json"], aim_s=0.5),
        Command("--cfg", [*launcher, "--cfg"]),
        Command("error", [*launcher, "actor.learning_rate=1"], PLAIN_OVERRIDE, aim_s=0.35, exit_code=2),
    ]


def lay_out(folder: Path, loaded: Loaded) -> None:
    """Writes the experiment as plain Hydra files, the schema's defaults as the first of them."""
    opened = [path for path, section in loaded.schema.sections.items() if section.default_null and loaded.get_raw(path)]
    (folder / "schema.yaml").write_text(to_yaml(loaded.schema.defaults(opened)), encoding="utf-8")
    shutil.copytree(data_folder("conf"), folder, dirs_exist_ok=True)
    text = loaded.file.read_text(encoding="utf-8")
    below = f"defaults:\n  - schema\n  - experiment: {loaded.experiment}\n"
    (folder / CONFIG).write_text(text.replace("defaults:\n", below, 1), encoding="utf-8")
    if plain_hydra.compose(folder, CONFIG, []) != loaded.raw:
        raise SystemExit(f"plain Hydra composes another tree of {CONFIG}: times are not comparable")


def run(command: Command, folder: Path) -> None:
    """Runs it once, in an empty folder, with bytecode files allowed as for users."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with (folder / "output").open("w+b") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *command.words], cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        command.wall_s.append(time.perf_counter() - began)
        command.cpu_s.append(usage.ru_utime + usage.ru_stime)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != command.exit_code:
            output.seek(0)
            text = output.read().decode(errors="replace")
            raise SystemExit(f"{command.name}: exit code {process.returncode}, not {command.exit_code}\n{text}")


def measure(repeats: int) -> list[Command]:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        files, empty = Path(name) / "files", Path(name) / "empty"
        files.mkdir()
        empty.mkdir()
        lay_out(files, load(CONFIG))
        listed = commands(files)
        for command in listed:  # warm-up: fills the page cache and compiles
            run(command, empty)
            command.wall_s.clear()
            command.cpu_s.clear()
        for _ in range(repeats):
            for command in listed:
                run(command, empty)
        return listed


def report(listed: list[Command], load_before: tuple[float, ...]) -> dict[str, Any]:
    medians = {command.name: median(command.wall_s) for command in listed}
    return {
        "commit": _git("rev-parse", "HEAD"),
        "changed_since": bool(_git("status", "--porcelain")),
        "python": platform.python_version(),
        "hydra": importlib.metadata.version("hydra-core"),
        "omegaconf": importlib.metadata.version("omegaconf"),
        "hydra_plugins": _plugins(),
        "cpu_count": os.cpu_count(),
        "load_average": {"before": load_before, "after": os.getloadavg()},
        "repeats": len(listed[0].wall_s),
        "config": CONFIG,
        "fields": {name: len(Schema.of(cls).keys) for name, cls in EXPERIMENTS.items()},
        "commands": {
            command.name: {
                "wall_s": medians[command.name],
                "cpu_s": median(command.cpu_s),
                "times_python": medians[command.name] / medians[PYTHON],
                "times_hydra": medians[command.name] / medians[command.hydra],
                "aim_s": command.aim_s,
                "runs_s": command.wall_s,
            }
            for command in listed
        },
    }


def _plugins() -> list[str]:
    """Hydra imports every installed plugin."""
    names = {str(package.name) for package in importlib.metadata.distributions() if package.name}
    return sorted(name for name in names if name.startswith("hydra-") and name != "hydra-core")


def _git(*words: str) -> str | None:
    """None outside of a checkout."""
    if shutil.which("git") is None:
        return None
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def table(results: dict[str, Any]) -> str:
    lines = [f"{'':<27}{'median s':>9}{'CPU s':>8}{'x python':>10}{'x Hydra':>9}{'aim s':>7}"]
    for name, row in results["commands"].items():
        aim = "" if row["aim_s"] is None else f"{row['aim_s']:.2f}"
        late = " (missed)" if row["aim_s"] is not None and row["wall_s"] > row["aim_s"] else ""
        numbers = f"{row['wall_s']:>9.3f}{row['cpu_s']:>8.3f}{row['times_python']:>10.1f}{row['times_hydra']:>9.2f}"
        lines.append(f"{name:<27}{numbers}{aim:>7}{late}")
    fields = ", ".join(f"{name} {count}" for name, count in results["fields"].items())
    before, after = (values[0] for values in results["load_average"].values())
    versions = f"python {results['python']}, hydra {results['hydra']}, omegaconf {results['omegaconf']}"
    lines.append(f"{versions}; plugins: {', '.join(results['hydra_plugins']) or 'none'}")
    lines.append(f"fields: {fields}; load {before:.1f} to {after:.1f} on {results['cpu_count']} cores")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="runs of each command; the median is reported")
    add_output(parser, "config")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error("--repeats: at least 1")
    load_before = os.getloadavg()
    results = report(measure(arguments.repeats), load_before)
    print(table(results))
    write_report(results, arguments.output)


if __name__ == "__main__":
    main()
