"""Tests of the documents: commands end with the stated exit code, quoted output is real, files compose, links resolve.

Each page is run from top to bottom in an empty folder. A block of YAML or Python begins with a comment that names its
file. In a `console` block a line that begins with `$ ` is a command; `# exit code N` after it is its exit code (default
0), and the lines below are all of its output, with `...` for omitted parts.

A command that starts a run composes, plans and checks everything, and creates the run's directory, but starts no
processes. Instead the test writes the files of a finished run there, with the initial model, for `resume=` and `chat`.
The quoted output of such a command, and of `chat`, is not compared. A command marked `# for real` is also run
unchanged, in a separate test, after the Python programs of the page above it.
"""

import contextlib
import functools
import io
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from areal_like import api
from areal_like.config import engines
from areal_like.config.allocation import Machine
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.load import load
from areal_like.config.loaded import Loaded
from areal_like.config.names import ALIASES
from areal_like.config.schema import Schema
from areal_like.config.sections.trackers import TRACKERS
from areal_like.config.sources import yaml_file
from areal_like.config.sources.yaml_file import YamlFile, read_yaml
from areal_like.models import model_folder
from areal_like.observe.summary import summarize_run
from areal_like.process import checkpoint_files
from areal_like.process.checkpoint_files import RESUME
from areal_like.process.run import LEDGER
from docs.make import pages, reference_page
from launcher.cli import main
from launcher.commands import chat, sweep
from launcher.plan.build import build_plan
from launcher.plan.plan import Plan
from launcher.plan.purpose import Purpose
from launcher.runs.checkpoints import step_folder
from launcher.supervisor import guardian
from launcher.supervisor import launch as launching
from launcher.supervisor.run_lock import lock_run
from tests.ring.start import environment, processes_of, warnings_in

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    path.name: path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
}
GENERATED = ("reference.md", "keys.md", "metrics.md")
PROSE = (
    *(
        "README",
        "algorithms",
        "configuration",
        "curriculum",
        "data",
        "environments",
        "evaluation",
        "experiments",
        "gpu",
    ),
    *("own-task", "turns", "rewards", "running", "sandbox", "serving", "status", "trackers", "weights"),
)
CHECKED = [f"{name}.md" for name in PROSE]
"""Pages whose names of files and keys must exist."""
WRITTEN = sorted(set(PAGES) - set(GENERATED))
LANGUAGES = ("console", "bash", "yaml", "python", "text")
LAPTOP = Machine(num_gpus=0, num_cpu_cores=8, how="no NVIDIA driver", engines=())
"""The machine of the quoted plans."""
PLUGINS = {"optuna": "hydra_optuna_sweeper", "joblib": "hydra_joblib_launcher"}
FOR_REAL = "# for real"
MAY_BE_MISSING = r"is not installed|needs \d+ GPUs? on this machine|is not in the Hugging Face cache|needs an API key"
MAY_BE_MISSING += "|no (vLLM|SGLang) was found|are not on this machine yet|by slurm is not built yet|needs the package"
"""Messages about packages, GPUs, engines, downloads, keys of services and clusters."""
STATED_PROBLEMS = {("bigger.yaml", "actor.path")}
"""Files and keys whose problem is stated on the page, or whose folder is an example."""
MADE_STEPS = 20
"""Steps of the simulated runs."""


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


@dataclass
class Command:
    place: str
    text: str
    exit_code: int
    for_real: bool = False
    output: list[str] = field(default_factory=list)

    def mismatch(self, code: int, printed: str, compare: bool = True) -> str:
        """Differences from the page; empty if there are none."""
        printed = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
        while self.output and not self.output[-1]:
            self.output.pop()
        if code != self.exit_code:
            return f"{self.place}: {self.text}\nends with {code}, not {self.exit_code}:\n{printed}"
        if not compare or not self.output or re.fullmatch(pattern(self.output), printed):
            return ""
        missing = [line for line in self.output if not re.search(pattern([line]), printed, flags=re.M)]
        strange = "\n".join(missing) or "(every line is there, but not in this order and nothing left out)"
        return f"{self.place}: {self.text}\nquotes\n{strange}\nbut prints\n{printed}"


@functools.cache
def text_of(page: str) -> str:
    return PAGES[page].read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    read: list[Block] = []
    opened: tuple[int, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(text_of(page).splitlines(), start=1):
        fence = re.match(r"\s*```(.*)", line)
        if fence and opened is None:
            opened, lines = (number, fence[1].strip()), []
        elif fence and opened is not None:
            read.append(Block(page, *opened, tuple(lines)))
            opened = None
        else:
            lines.append(line)
    assert opened is None, f"{page}:{opened}: block without end"
    return read


def commands(block: Block) -> list[Command]:
    """In a `bash` block every line is a command."""
    read: list[Command] = []
    waiting = ""
    for number, line in enumerate(block.lines, start=block.line + 1):
        if waiting or line.startswith("$ ") or (block.language == "bash" and line.strip()):
            words = f"{waiting} {line.strip()}".strip() if waiting else line.removeprefix("$ ")
            waiting = words.removesuffix("\\") if words.endswith("\\") else ""
            if not waiting:
                expected = re.search(r"\s+# exit code (\d+)$", words)
                text = re.sub(r"\s+# .*$", "", words)
                code = int(expected[1]) if expected else 0
                read.append(Command(f"{block.page}:{number}", text, code, words.endswith(FOR_REAL)))
        else:
            assert read, f"{block.page}:{number}: output without a command"
            read[-1].output.append(line.rstrip())
    return read


def pattern(lines: list[str]) -> str:
    """An excerpt as a regular expression over the whole output."""
    whole = "".join(f"{re.escape(line)}\n" for line in lines)
    return re.sub(r"^ *\\\.\\\.\\\.\n", "(?:.*\\n)*?", whole, flags=re.M).replace(r"\.\.\.", ".*")


class Session:
    """Runs all commands of a page in an empty folder, and writes its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read: set[Path] = set()
        self.waiting: dict[Path, Block] = {}
        self.typed: list[str] = []
        self.failures: list[str] = []
        self.ran = False
        """Whether the last command was only simulated."""
        self.made: Path | None = None
        """The directory of the last run."""

    def work_through(self, page: str) -> None:
        for block in blocks(page):
            assert block.language in LANGUAGES, f"{page}:{block.line}: a block is one of {', '.join(LANGUAGES)}"
            if block.language in ("yaml", "python"):
                self.write(block)
            elif block.language in ("console", "bash"):
                for command in commands(block):
                    self.type(command)
        self.settle()
        if not self.failures:
            self.plan_files(page)

    def plan_files(self, page: str) -> None:
        """A dry run of each experiment of the page has no other obstacle than what a machine may lack."""
        for block in blocks(page):
            name = block.lines[0].removeprefix("# ")
            if block.language != "yaml" or "/" in name or not have_plugins(f"--config {name}", self.folder):
                continue
            schemas = (re.search(rf"--config {re.escape(name)} --schema (\S+)", text) for text in self.typed)
            schema = next((found[1] for found in schemas if found), None)
            for problem in build_plan(load(self.folder / name, schema=schema)).problems:
                if not re.search(MAY_BE_MISSING, problem.message) and (name, problem.key) not in STATED_PROBLEMS:
                    self.failures.append(f"{page}:{block.line}: {name} cannot start: {problem.key}: {problem.message}")

    def write(self, block: Block) -> None:
        named = re.fullmatch(r"# ([\w./-]+\.(?:yaml|py))", block.lines[0])
        assert named, f"{block.page}:{block.line}: the first line names the file: # mine.yaml"
        path = self.folder / named[1]
        self.settle(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
        self.read.discard(path.resolve())
        self.waiting[path] = block
        if block.language == "python":
            compile(block.text, str(path), "exec")

    def settle(self, *only: Path) -> None:
        """Composes files that no command has used; options of groups and modules must have been used."""
        for path, block in list(self.waiting.items()):
            if only and path not in only:
                continue
            del self.waiting[path]
            if path.suffix == ".py":
                used = any(path.name in text or f"{path.stem}:" in text for text in self.typed)
                assert used, f"{block.page}:{block.line}: no command uses {path.name}"
            elif path.resolve() not in self.read:
                assert path.parent == self.folder, f"{block.page}:{block.line}: no command composes {path.name}"
                load(path)

    def type(self, command: Command) -> None:
        self.typed.append(command.text)
        if not have_plugins(command.text, self.folder):
            return
        assigned = re.match(r"(?:[A-Z_]+=\S* )*", command.text)
        assert assigned is not None
        text = command.text.removeprefix(assigned[0])
        program = next((runner for prefix, runner in PROGRAMS.items() if text.startswith(prefix)), None)
        assert program is not None, f"{command.place}: no check for {text!r}"
        variables = dict(word.split("=", 1) for word in shlex.split(assigned[0]))
        self.ran = False
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            code, output = program(shlex.split(text))
        if mismatch := command.mismatch(code, output, compare=not self.ran):
            self.failures.append(mismatch)
        elif not any("cannot start" in line for line in command.output):
            self.failures += [f"{command.place}: {command.text}\ncannot start: {each}" for each in obstacles(output)]

    # --- simulated runs

    def begin(self, loaded: Loaded, plan: Plan, run_id: str, replace: bool = False) -> int:
        """Replaces `launcher.supervisor.launch.launch`: a run that ends at once, in a normal directory."""
        self.ran = True
        typed = self.typed[-1]
        # What a resumed run changes by an override it names, so that nothing changes unseen.
        warnings = [each for each in plan.warnings if not ("resume=" in typed and each.startswith("changed since"))]
        if warnings:
            self.failures.append(f"{typed}\nis a run of a page and has warnings:\n" + "\n".join(warnings))
        locked = lock_run(loaded, plan, run_id, replace)
        locked.release()
        self.made = locked.run.directory
        folder = step_folder(self.made, MADE_STEPS)
        if not folder.exists():
            shutil.copytree(model_folder("builtin:tiny-addition"), folder)
            if loaded.experiment == "reward_model":
                described = folder / "config.json"
                described.write_text(described.read_text().replace("ForCausalLM", "ForSequenceClassification"))
            (folder / RESUME).mkdir()
            (folder / RESUME / "trainer.json").write_text("{}")
            checkpoint_files.write_manifest(folder, MADE_STEPS)
            locked.run.rollouts.mkdir(exist_ok=True)
            (locked.run.rollouts / LEDGER).touch()
            for step in (0, MADE_STEPS):  # an evaluation before and after the steps
                answers = self.made / "evaluations" / step_folder(self.made, step).name
                answers.mkdir(parents=True)
                (answers / "valid.jsonl").write_text('{"row": 0, "row_hash": "1", "sample": 0, "score": 1.0}\n')
        print(summarize_run(self.made, "done", 0, time.time(), locked.start.attempt))
        return 0

    def serve(self, loaded: Loaded, plan: Plan, run_id: str, replace: bool = False) -> int:
        """Replaces `launcher.commands.serve.serve`: servers that end at once."""
        self.ran = True
        locked = lock_run(loaded, plan, run_id, replace, Purpose.SERVE)
        locked.release()
        return 0

    def run_command(self, words: list[str]) -> api.CommandResult:
        """Replaces `areal_like.api.run_command`: in this process."""
        self.made = None
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            code = main(words)
        return api.CommandResult(code, self.made, errors.getvalue().strip())

    def answer(self, _prompt: str) -> str:
        """Replaces the model of `chat`."""
        self.ran = True
        return "046"


def obstacles(printed: str) -> list[str]:
    """Why a run cannot start by its dry run, without what a machine may lack."""
    found = re.findall(r"^cannot start here \(\d+\)\n((?:  .*\n)+)", printed, flags=re.M)
    items = [" ".join(item.split()) for each in found for item in re.split(r"^  - ", each, flags=re.M)[1:]]
    return [item for item in items if not re.search(MAY_BE_MISSING, item)]


def launch(words: list[str]) -> tuple[int, str]:
    """`python -m launcher ...` in this process; `> FILE` at the end redirects its output."""
    target = Path(words[-1]) if len(words) > 1 and words[-2] == ">" else None
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = main(words[:-2] if target else words)
    if target is None:
        return code, out.getvalue()
    target.write_text(out.getvalue(), encoding="utf-8")
    return code, ""


def make(words: list[str]) -> tuple[int, str]:
    """A dry run of make: the target must exist; launcher commands in it are run."""
    done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        return done.returncode, done.stderr
    output = ""
    for line in done.stdout.splitlines():
        if " -m launcher " in line:
            code, printed = launch(shlex.split(line.partition(" -m launcher ")[2]))
            output += printed
            if code:
                return 2, output + "make: ***\n"
    return 0, output


def python(words: list[str]) -> tuple[int, str]:
    """A Python program of the page."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words[1:])
        runpy.run_path(words[1], run_name="__main__")
    return 0, out.getvalue()


def gpu_checks(words: list[str]) -> tuple[int, str]:
    """The program itself is tested in tests/gpu: only parses the command."""
    from tests.gpu.check import arguments_of

    assert arguments_of(words[3:]).wanted
    return 0, ""


def echo(words: list[str]) -> tuple[int, str]:
    """`echo TEXT | python -m launcher ...`"""
    assert words[2:6] == ["|", "python", "-m", "launcher"], words
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(f"{words[1]}\n"))
        return launch(words[6:])


def pip_install(words: list[str]) -> tuple[int, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert words[2:4] == ["-c", "constraints.txt"] and (ROOT / words[3]).is_file()
    extras = re.fullmatch(r"\.(?:\[([\w,]+)\])?", words[-1])
    assert extras, words
    assert set((extras[1] or "").split(",")) <= {"", *project["optional-dependencies"]}
    return 0, ""


def tensorboard(words: list[str]) -> tuple[int, str]:
    with warnings.catch_warnings(action="ignore"):  # it uses deprecated functions
        from tensorboard.program import TensorBoard

    program = TensorBoard()
    program.configure(words)
    assert Path(program.flags.logdir).is_dir()
    return 0, ""


def synchronize(words: list[str]) -> tuple[int, str]:
    """Sending needs a service: only parses the command, for an existing run."""
    (script,) = entry_points(group="console_scripts", name=words[0])
    script.load().commands["sync"].make_context("sync", words[2:], resilient_parsing=True)
    assert Path(words[2]).parents[1].is_dir()
    return 0, ""


def activate(words: list[str]) -> tuple[int, str]:
    assert f"VENV ?= {words[1].removesuffix('/bin/activate')}\n" in (ROOT / "Makefile").read_text(encoding="utf-8")
    return 0, ""


PROGRAMS: dict[str, Callable[[list[str]], tuple[int, str]]] = {
    "python -m launcher ": lambda words: launch(words[3:]),
    "areal-like ": lambda words: launch(words[1:]),
    "python -m tests.gpu.check ": gpu_checks,
    "python ": python,
    "echo ": echo,
    "make": make,
    "pip install ": pip_install,
    "source ": activate,
    "tensorboard ": tensorboard,
    "wandb sync ": synchronize,
    "swanlab sync ": synchronize,
}


def have_plugins(text: str, folder: Path) -> bool:
    """Whether the Hydra plugins that a command or its file uses are installed."""
    named = re.search(r"--config[ =](\S+\.yaml)", text)
    file = folder / named[1] if named else None
    text_and_file = text + (file.read_text(encoding="utf-8") if file is not None and file.is_file() else "")
    modules = [module for name, module in PLUGINS.items() if re.search(rf"hydra/\w+\s*[=:]\s*{name}", text_and_file)]
    return all(find_spec("hydra_plugins") and find_spec(f"hydra_plugins.{module}") for module in modules)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    folder = (tmp_path / "work").resolve()
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setattr("launcher.plan.host.detect_machine", lambda: LAPTOP)
    monkeypatch.setattr("launcher.plan.host.has_bfloat16", lambda: True)
    monkeypatch.setattr(engines, "_registered", dict(engines._registered))
    session = Session(folder)
    monkeypatch.setattr(guardian, "run_guarded", lambda run, memory: run())
    monkeypatch.setattr(launching, "launch", session.begin)
    monkeypatch.setattr("launcher.commands.serve.serve", session.serve)
    for module in (api, sweep):
        monkeypatch.setattr(module, "run_command", session.run_command)
    monkeypatch.setattr(chat._ChatModel, "__init__", lambda *_: None)
    monkeypatch.setattr(chat._ChatModel, "answer", session.answer)

    def recorded(path: Path, *rest: Any, **more: Any) -> YamlFile:
        session.read.add(path.resolve())
        return read_yaml(path, *rest, **more)

    monkeypatch.setattr(yaml_file, "read_yaml", recorded)
    modules, places = set(sys.modules), list(sys.path)
    with mock.patch.dict(TRACKERS):
        yield session
    sys.path[:] = places
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and str(folder) in str(sys.modules[name].__file__):
            del sys.modules[name]


@pytest.mark.parametrize("page", WRITTEN)
def test_the_commands_of_a_page_do_what_it_states(page: str, session: Session) -> None:
    session.work_through(page)
    assert not session.failures, "\n".join(session.failures)


def test_the_engine_on_its_page_is_the_one_that_passes_the_contract_suite() -> None:
    shown = {block.language: "\n".join(block.lines) for block in blocks("own-engine.md")}
    tested = ROOT / "tests" / "serving" / "contract"
    assert shown["python"] == "# plain_schema.py\n" + (tested / "plain_schema.py").read_text().rstrip()
    assert shown["text"].rstrip() in (tested / "plain_engine.py").read_text()


def real_commands() -> list[Any]:
    return [
        pytest.param(
            block.page,
            command,
            id=f"{command.place} {command.text}",
            marks=() if block.page == "own-task.md" else pytest.mark.slow,
        )
        for page in WRITTEN
        for block in blocks(page)
        if block.language in ("console", "bash")
        for command in commands(block)
        if command.for_real
    ]


@pytest.mark.xdist_group("ring-2")
@pytest.mark.parametrize(("page", "command"), real_commands())
def test_commands_marked_for_real_run_unchanged(page: str, command: Command, tmp_path: Path) -> None:
    session = Session(tmp_path / "work")
    for block in blocks(page):
        if block.language in ("yaml", "python"):
            session.write(block)
    variables = environment(tmp_path) | {"COLUMNS": "100"}
    typed = [each for block in blocks(page) if block.language in ("console", "bash") for each in commands(block)]
    for before in typed[: [each.place for each in typed].index(command.place)]:
        if re.fullmatch(r"python \w+\.py", before.text):
            program = [sys.executable, *shlex.split(before.text)[1:]]
            subprocess.run(program, cwd=session.folder, env=variables, timeout=60, check=True)
    words = [sys.executable, *shlex.split(command.text)[1:]]
    done = subprocess.run(
        words,
        cwd=session.folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    mismatch = command.mismatch(done.returncode, done.stdout)
    assert command.text.startswith("python ") and not mismatch, mismatch
    assert warnings_in(done.stdout) == []
    assert not any(processes_of(path.parent) for path in session.folder.glob("runs/*/*/run.json"))


def test_generated_pages_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert pages.main(["--check"]) == 0, capsys.readouterr().err


def test_a_stale_page_is_reported_and_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    page = tmp_path / "reference.md"
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    monkeypatch.setattr(pages, "pages", lambda: {page: "new\n"})
    assert pages.main(["--check"]) == 1 and "reference.md" in capsys.readouterr().err
    assert pages.main([]) == 0 and page.read_text() == "new\n"
    assert pages.main(["--check"]) == 0
    assert pages.main(["--chek"]) == 2


def test_the_reference_has_every_key_and_every_section() -> None:
    page = reference_page.render()
    for cls in EXPERIMENTS.values():
        schema = Schema.of(cls)
        for path in schema.sections:
            shown = path.removesuffix("[]")
            assert f"`{shown}`" in page or not path, path
        for path, key in schema.keys.items():
            assert f"| `{path}` |" in page or f"| `{key.name}` |" in page, path


# --- what pages refer to


def slugs(page: str) -> set[str]:
    """The anchors of the page on the web."""
    anchors: set[str] = set()
    outside = re.sub(r"^```.*?^```", "", text_of(page), flags=re.S | re.M)
    for title in re.findall(r"^#+ (.*)$", outside, flags=re.M):
        anchors.add(re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-"))
    return anchors


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page: str) -> None:
    folder = PAGES[page].parent
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", text_of(page), flags=re.S | re.M)):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        path = (folder / name).resolve() if name else PAGES[page]
        assert path.exists(), target
        assert not anchor or anchor in slugs(path.name), target


@pytest.mark.parametrize("page", WRITTEN)
def test_make_targets_named_on_a_page_exist(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:^    |`)make ([a-z-]+)", text_of(page), flags=re.M):
        assert re.search(rf"^{target}:", makefile, flags=re.M), target


@pytest.mark.parametrize("page", CHECKED)
def test_files_named_on_a_page_exist(page: str) -> None:
    for name in re.findall(r"`((?:tests|experiments|conf|areal_like|launcher)/[\w./]*)`", text_of(page)):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("page", CHECKED)
def test_keys_named_on_a_page_exist(page: str) -> None:
    schemas = [Schema.of(cls) for cls in EXPERIMENTS.values()]
    known = {name for schema in schemas for name in schema.names()} | set(ALIASES)
    maps = {path for schema in schemas for path, key in schema.keys.items() if key.kind.name == "map"}
    tops = {name for name in known if "." not in name}
    outside = re.sub(r"^```.*?^```", "", text_of(page), flags=re.S | re.M)
    for name in re.findall(r"`([a-z_]+(?:\.[A-Za-z0-9_]+)+)(?:=[^`]*)?`", outside):
        if name.split(".")[0] in tops and not name.endswith((".yaml", ".py", ".jsonl")):
            inside = any(name.startswith(f"{path}.") for path in maps)
            assert name in known or inside, name
