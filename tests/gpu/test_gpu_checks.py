"""The program for a GPU works: here on a CPU, with tiny sizes. Speed is not checked."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from areal_like.process.process_tree import process_info
from tests.gpu import check
from tests.gpu.models import engine_of
from tests.gpu.part import run_part
from tests.gpu.parts import PARTS, Part, by_name
from tests.gpu.report import CANNOT, DONE, FAILED, RUNNING, Aim, CannotRun, Report, write_json
from tests.gpu.summary import summary
from tests.support.engine_environments import require_engine

IN_PROCESS = ("kernels", "parity", "steps", "head", "rl_step", "graphs")
SLOW = ("compiled", "rehearsal", "recomputation", "layers_7b")
RINGS = ("update", "decode", "first_step")
ENGINES = ("vllm", "sglang")


def content_of(name: str, folder: Path) -> dict[str, Any]:
    (part,) = by_name(name)
    content: dict[str, Any] = run_part(part, folder / "part.json", small=True).content
    assert json.loads((folder / "part.json").read_text()) == content
    return content


def test_each_part_is_tried_by_a_test() -> None:
    assert {part.name for part in PARTS} == {*IN_PROCESS, *SLOW, *RINGS, *ENGINES}


@pytest.mark.parametrize("name", IN_PROCESS)
def test_a_part_runs_on_a_cpu(name: str, tmp_path: Path) -> None:
    content = content_of(name, tmp_path)
    assert content["status"] == DONE, content
    assert all(row["met"] for row in content["figures"] if row["limit"]) and content["figures"]
    assert [row for row in content["figures"] if row["value"] is None and not row["note"]] == []
    assert not [row["name"] for row in content["figures"] if re.search(r"\dk\b", row["name"])], "those of real sizes"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # torch's compiler emits some
@pytest.mark.parametrize("name", SLOW)
def test_a_slow_part_runs_on_a_cpu(name: str, tmp_path: Path) -> None:
    content = content_of(name, tmp_path)
    assert content["status"] == DONE, content


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("embedded")
def test_the_program_runs_parts_with_runs_and_servers(tmp_path: Path) -> None:
    words = ("--small", "--parts", ",".join(RINGS), "--limit", "900", "--out", str(tmp_path / "out"))
    parts = called(tmp_path, *words)
    assert {name: part["status"] for name, part in parts.items()} == dict.fromkeys(RINGS, DONE), parts
    figures = {row["name"]: row["value"] for part in parts.values() for row in part["figures"]}
    assert all(figures[f"{mode}: served after"] > figures[f"{mode}: publish"] > 0 for mode in ("disk", "collective"))
    assert figures["4 in flight"] > 0
    assert figures["quickstart: from the command to the first step"] > 0
    assert parts["update"]["facts"]["machine"]["torch"] == torch.__version__


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ENGINES])
def test_the_program_runs_the_part_of_an_engine(engine: str, tmp_path: Path) -> None:
    require_engine(engine)
    parts = called(tmp_path, "--small", "--parts", engine, "--limit", "900", "--out", str(tmp_path / "out"))
    assert parts[engine]["status"] == DONE, parts


def called(root: Path, *words: str) -> dict[str, Any]:
    """The whole program; its results."""
    variables = {"XDG_STATE_HOME": str(root / "state"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.check", *words],
        cwd=check.ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    log = root / "out" / "output.txt"
    assert done.returncode == 0, done.stdout + done.stderr + (log.read_text() if log.exists() else "")
    parts: dict[str, Any] = json.loads((root / "out" / "checks.json").read_text())
    return parts


@pytest.mark.parametrize("name", [pytest.param("parity", marks=pytest.mark.slow), "kernels"])
def test_a_device_that_computes_wrong_numbers_fails(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    from areal_like.training import attention

    right = attention._sdpa
    monkeypatch.setattr(attention, "_sdpa", lambda *given, **more: 1.03 * right(*given, **more))
    content = content_of(name, tmp_path)
    assert content["status"] == FAILED and content["reason"].startswith("beyond the limit: ")


def test_a_key_that_recomputes_nothing_fails(tmp_path: Path, monkeypatch: Any) -> None:
    from tests.gpu import steps

    made = engine_of

    def recomputing(*given: Any, **settings: Any) -> Any:
        return made(*given, **{**settings, "gradient_checkpointing": True})

    monkeypatch.setattr(steps, "engine_of", recomputing)
    monkeypatch.setattr(steps, "measure", lambda *_: None)
    content = content_of("recomputation", tmp_path)
    assert content["status"] == FAILED and "bytes saved" in content["reason"]


# --- reports


def test_a_missed_aim_is_shown_and_a_broken_limit_fails(tmp_path: Path) -> None:
    report = Report("head", tmp_path / "one.json", small=False)
    report.figure("speed", 10.0, "tokens/s", Aim(least=20))
    report.end(DONE)
    assert report.content["status"] == DONE and report.content["figures"][0]["met"] is False
    report.limit("error", float("nan"), Aim(most=1))
    report.end(DONE)
    assert report.content["status"] == FAILED and report.content["reason"] == "beyond the limit: error"
    text = summary({"head": report.content})
    assert "aim at least 20" in text and "missed" in text and "BEYOND" in text
    assert "not run yet: kernels,parity," in text


def test_small_sizes_aim_at_nothing_but_keep_limits(tmp_path: Path) -> None:
    report = Report("head", tmp_path / "one.json", small=True)
    report.figure("speed", 10.0, "tokens/s", Aim(least=20))
    report.limit("error", 2.0, Aim(most=1))
    assert [row["met"] for row in report.content["figures"]] == [None, False]
    assert "head (tiny sizes, which test the program alone):" in summary({"head": report.content})


@pytest.mark.parametrize(
    ("aim", "inside", "outside", "text"),
    [
        (Aim(68_000, 80_000), 70_000, 67_999, "68,000 to 80,000"),
        (Aim(most=0.05), 0.05, 0.051, "at most 0.05"),
        (Aim(least=2), 3, 1, "at least 2"),
    ],
)
def test_an_aim_is_a_range(aim: Aim, inside: float, outside: float, text: str) -> None:
    assert aim.is_met(inside) and not aim.is_met(outside) and str(aim) == text


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        (CannotRun("there is no such kernel here"), CANNOT, "there is no such kernel here"),
        (RuntimeError("no such kernel\nat all"), FAILED, "RuntimeError: no such kernel\nat all"),
    ],
)
def test_a_part_that_raises_leaves_its_reason(
    fault: Exception, status: str, reason: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    from tests.gpu import head

    def broken(report: Report) -> None:
        report.figure("first", 1.0)
        raise fault

    monkeypatch.setattr(head, "head", broken)
    content = content_of("head", tmp_path)
    assert (content["status"], content["reason"], len(content["figures"])) == (status, reason, 1)
    assert ("Traceback" in capsys.readouterr().err) == (status == FAILED)


# --- the program

BEGUN: dict[str, Any] = {"part": "x", "status": RUNNING, "reason": None, "facts": {}}
FIGURE = {"name": "f", "value": 1.0, "unit": "", "aim": None, "met": None, "limit": False, "note": ""}
ENDINGS = {
    "head": {**BEGUN, "status": DONE, "figures": [FIGURE]},
    "kernels": {**BEGUN, "figures": [FIGURE]},
    "parity": {**BEGUN, "figures": [FIGURE]},
}
CODE = {
    "head": "0",
    "kernels": "print('a kernel died', flush=True); import os; os.abort()",
    "parity": "import time; time.sleep(600)",
}


@pytest.fixture
def faked(tmp_path_factory: Any, monkeypatch: Any) -> list[str]:
    """Parts whose processes write a file and end, each in its way; the names of those that are started."""
    begun: list[str] = []
    tmp_path = tmp_path_factory.mktemp("parts")

    def command(part: Part, file: Path, small: bool, words: Sequence[str]) -> list[str]:
        begun.append(part.name)
        write_json(written := tmp_path / f"{part.name}.part", ENDINGS.get(part.name, ENDINGS["head"]))
        move = f"import os; os.replace({str(written)!r}, {str(file)!r})"  # a whole file at once, as a report is
        return [sys.executable, "-c", f"{move}; {CODE.get(part.name, '0')}"]

    monkeypatch.setattr(check, "command", command)
    monkeypatch.setattr(check, "POLL_S", 0.02)
    return begun


def test_a_part_that_dies_or_hangs_keeps_its_figures(tmp_path: Path, faked: Any, monkeypatch: Any) -> None:
    """The time of the part that hangs is over once its figures were seen."""
    is_over, put = [], check.Results.put

    def putting(results: check.Results, name: str, content: dict[str, Any]) -> None:
        put(results, name, content)
        is_over.extend([True] if name == "parity" else [])

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 1e6 * bool(is_over), sleep=time.sleep)
    monkeypatch.setattr(check, "time", clock)
    monkeypatch.setattr(check.Results, "put", putting)
    parts = [part._replace(limit_s=60) for part in PARTS if part.name in ENDINGS]
    monkeypatch.setattr(check, "by_name", lambda names: [*reversed(parts)])
    assert check.main(["--small", "--parts", "some", "--limit", "600", "--out", str(tmp_path)]) == 1
    kept = json.loads((tmp_path / "checks.json").read_text())
    assert {name: part["status"] for name, part in kept.items()} == {"head": DONE, "parity": FAILED}
    parts.remove(next(part for part in parts if part.name == "parity"))
    is_over.clear()
    assert check.main(["--small", "--parts", "some", "--limit", "600", "--out", str(tmp_path)]) == 1
    kept = json.loads((tmp_path / "checks.json").read_text())
    assert kept["kernels"]["status"] == FAILED and kept["head"]["status"] == DONE
    assert "ended with -6" in kept["kernels"]["reason"] and "a kernel died" in kept["kernels"]["reason"]
    assert kept["parity"]["reason"].startswith("not done after 60 s")
    assert all(part["figures"] == [FIGURE] for part in kept.values())
    assert "a kernel died" in (tmp_path / "output.txt").read_text()
    assert "parity: failed" in (tmp_path / "summary.txt").read_text()


def test_a_call_stops_in_time_and_the_next_goes_on(
    tmp_path: Path, faked: list[str], monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(check, "by_name", lambda names: [part for part in PARTS if part.name in ("head", "rl_step")])
    assert check.main(["--small", "--limit", "1", "--out", str(tmp_path)]) == 0
    assert faked == ["head"] and "no time left for rl_step" in capsys.readouterr().out
    assert check.main(["--small", "--limit", "1", "--out", str(tmp_path)]) == 0
    assert faked == ["head", "rl_step"] and {*json.loads((tmp_path / "checks.json").read_text())} == {"head", "rl_step"}


def test_a_part_ends_with_the_program_that_is_killed(tmp_path: Path) -> None:
    """It would compute beside the parts of the next call. What it has started ends too, in other sessions also."""
    written = tmp_path / "pids"
    child = "import time; time.sleep(600)"
    code = (
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)\n"
        f"open({str(written)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}} .')\n"
        "time.sleep(600)\n"
    )
    program = (
        "import sys\nfrom tests.gpu import check\n"
        f"check.command = lambda *_: [sys.executable, '-c', {code!r}]\n"
        f"check.main(['--small', '--parts', 'head', '--out', {str(tmp_path / 'out')!r}])\n"
    )
    called = subprocess.Popen([sys.executable, "-c", program], cwd=check.ROOT, stdout=subprocess.DEVNULL)
    while not (written.is_file() and written.read_text().endswith(".")):
        time.sleep(0.01)
    called.kill()
    called.wait()
    for pid in map(int, written.read_text().split()[:2]):
        while (process := process_info(pid)) is not None and process.state not in "ZX":
            time.sleep(0.01)


@pytest.mark.parametrize("content", ["{", "[]", '{"head": 3}', '{"head": {"status": "done"}}'])
def test_a_damaged_file_of_results_is_named(content: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "checks.json").write_text(content)
    assert check.main(["--small", "--parts", "head", "--out", str(tmp_path)]) == 2
    assert f"--out: {tmp_path} cannot be used" in capsys.readouterr().err
    assert check.main(["--small", "--parts", "head", "--out", str(tmp_path / "checks.json")]) == 2


@pytest.mark.parametrize("limit", ["nan", "0", "-1", "soon"])
def test_a_limit_that_is_no_time_is_refused(limit: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        check.main(["--small", f"--limit={limit}"])
    assert "--limit" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_only_tiny_sizes_run(tmp_path: Path, capsys: Any) -> None:
    assert check.main(["--out", str(tmp_path)]) == 2 and "--small" in capsys.readouterr().err


def test_an_unknown_part_is_refused_with_the_known_ones(capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        check.main(["--small", "--parts", "head,heat"])
    refusal = capsys.readouterr().err
    assert ended.value.code == 2 and "heat is not a part; there are kernels, parity" in refusal
