"""Datasets are found before the start: every supported form, and one message for each missing one."""

import errno
import json
import os
from pathlib import Path

import pytest
import yaml

from areal_like.config.load import load
from areal_like.config.loaded import build_config
from areal_like.config.problems import ConfigError
from areal_like.data.readers.dataset_source import DatasetSource
from areal_like.data.user_code import SearchFolders
from launcher.checks import rows
from launcher.plan.auto import resolved_values
from launcher.plan.build import build_plan
from launcher.plan.datasets import resolved_datasets
from launcher.plan.plan import RunDirectory
from launcher.runs.fetch import fetch_from_hub
from tests.support.model_hub import NAME, REVISION, hub, in_cache, list_files
from tests.support.planning import machine_with

ROWS = "".join(json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) + "\n" for n in range(20))
KEY = "train_dataset.path"


@pytest.fixture
def host(tmp_path, monkeypatch):
    """The working directory is not the folder of the experiment's file."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("cwd", "beside"):
        (tmp_path / name).mkdir()
    return machine_with()._replace(directory=tmp_path / "cwd", hub=tmp_path / "hub")


def experiment(host, path, *words):
    file = host.directory.parent / "beside" / "mine.yaml"
    data = f"train_dataset: {{path: '{path}', batch_size: 8}}"
    text = f"defaults: [sft, _self_]\nexperiment_name: mine\ntask: {{name: null}}\n{data}\n"
    file.write_text(f"{text}valid_dataset: null\n")
    return load(file, words)


def against(loaded, host):
    plan = build_plan(loaded, host=host)
    return [each.message for each in (*plan.cannot_start, *plan.needs) if each.key.startswith("train_dataset")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.csv", "prompt,answer\n1+1=,2\n", "rows.csv has an unsupported format; convert it to"),
        ("rows.txt", "1+1=2\n", "rows.txt:1: is not a line of JSON"),
        ("rows.jsonl", f"[{ROWS.splitlines()[0]}]\n", "a file with one JSON list of rows is named .json"),
        ("rows.jsonl", "".join(ROWS.splitlines(keepends=True)[:3]) + '{"prompt": "1', "rows.jsonl:4: is not a line of"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_before_the_size_of_a_batch(host, name, content, message):
    (host.directory / name).write_text(content)
    (problem,) = against(experiment(host, name), host)
    assert message in problem


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_a_byte_order_mark_is_left_out(host, name):
    rows = [json.loads(line) for line in ROWS.splitlines()]
    (host.directory / name).write_text(json.dumps(rows) if name == "rows.json" else ROWS, encoding="utf-8-sig")
    loaded = experiment(host, name)
    assert against(loaded, host) == []
    source = DatasetSource("train_dataset", "train", loaded.config.train_dataset)
    assert list(source.find(SearchFolders(host.directory, host.directory), []).rows) == rows


def test_a_task_or_file_of_a_similar_name_is_suggested(host):
    (host.directory / "rows.jsonl").write_text(ROWS)
    assert "there is no file or folder adition; did you mean addition?" in against(experiment(host, "adition"), host)[0]
    assert "did you mean rows.jsonl?" in against(experiment(host, "row.jsonl"), host)[0]
    assert "did you mean" not in against(experiment(host, "no.jsonl"), host)[0]


@pytest.mark.parametrize("where", ["cwd", "beside"])
@pytest.mark.parametrize(
    ("path", "file"),
    [
        ("rows.jsonl", "rows.jsonl"),
        ("rows.json", "rows.json"),
        ("rows.parquet", "rows.parquet"),
        ("data/gsm8k", "data/gsm8k/train.parquet"),
        ("data/gsm8k", "data/gsm8k/data/train-0.parquet"),
        ("./data/sums/", "data/sums/train.jsonl"),
        ("saved", "saved/state.json"),
        ("rows", "rows/train.json"),
    ],
)
def test_readable_datasets_are_accepted(host, where, path, file):
    there = host.directory.parent / where / file
    there.parent.mkdir(parents=True, exist_ok=True)
    there.write_text(f"PAR1{ROWS}PAR1" if there.suffix == ".parquet" else ROWS)
    assert against(experiment(host, path), host) == []


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("rows.parquet", f"PAR1{ROWS}", "is no complete parquet file: its ends lack the mark PAR1; copy it again"),
        ("rows.parquet", "", "is no complete parquet file: its ends lack the mark PAR1; copy it again"),
        ("rows.json", '[{"prompt": "1', "is not a JSON list of rows: Unterminated string"),
    ],
)
def test_a_file_that_was_cut_off_is_reported_before_the_start(host, name, content, why):
    file = host.directory / name
    file.write_text(content)
    (found,) = against(experiment(host, name), host)
    assert found.startswith(f"{file} {why}")


def test_a_file_that_cannot_be_read_is_reported_before_the_start(host, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    file = host.directory / "rows.json"
    file.write_text(ROWS)
    monkeypatch.setattr(rows, "_count", refuse)
    assert against(experiment(host, file.name), host) == [f"{file} cannot be read: Permission denied"]


def test_each_path_of_a_list_is_found(host):
    (host.directory / "rows.jsonl").write_text(ROWS)
    paths = ("train_dataset.path=[rows.jsonl,rows.jsonl]", "train_dataset.batch_size=40")
    assert against(experiment(host, "rows.jsonl", *paths), host) == []
    wrong = against(experiment(host, "rows.jsonl", "train_dataset.path=[rows.jsonl,no.jsonl,nor.parquet]"), host)
    assert [reason.partition(" (")[0] for reason in wrong] == [
        "there is no file or folder no.jsonl",
        "there is no file or folder nor.parquet",
    ]


def test_each_name_of_a_list_is_fetched_before_the_revisions_are_known(host, tmp_path):
    in_cache(host.hub, {"train.jsonl": ROWS}, kind="datasets")
    plan = build_plan(experiment(host, NAME, f"train_dataset.path=[{NAME},org/missing]"), host=host)
    assert not [key for key in plan.auto if key.key == "train_dataset.revision"]
    assert any("org/missing is not in the Hugging Face cache" in warning for warning in plan.warnings)


def revisions_of_plan(loaded, host):
    return {each.key: each.value for each in build_plan(loaded, host=host).auto if each.key.endswith(".revision")}


def test_the_commits_of_a_list_and_of_a_benchmark_are_fixed_and_read(host, monkeypatch):
    snapshot = in_cache(host.hub, {"train.jsonl": ROWS, "test.jsonl": ROWS}, kind="datasets")
    older = snapshot.with_name(REVISION[::-1])
    older.mkdir()
    (older / "train.jsonl").write_text(ROWS)
    list_files(older)
    (snapshot.parents[1] / "refs" / "old").write_text(older.name)
    (host.directory / "rows.jsonl").write_text(ROWS)
    data = {"path": [NAME, "rows.jsonl", NAME], "revision": ["", "", "old"], "batch_size": 8}
    benchmarks = [{"name": "fixed", "path": NAME}, {"name": "sums", "task": {"name": "addition"}}]
    file = host.directory / "mine.yaml"
    body = {
        "task": {"name": None},
        "valid_dataset": None,
        "train_dataset": data,
        "evaluator": {"benchmarks": benchmarks},
    }
    file.write_text(yaml.safe_dump({"defaults": ["grpo", "_self_"], **body, "reward": {"name": "exact"}}))
    loaded = load(file)
    commits = [REVISION, "", older.name]
    fixed = {"train_dataset.revision": commits, "evaluator.benchmarks.0.revision": REVISION}
    assert revisions_of_plan(loaded, host) == fixed
    values = resolved_values(loaded, build_plan(loaded, host=host).auto)
    again = build_config(loaded.cls, values)
    assert (again.train_dataset.revision, again.evaluator.benchmarks[0].revision) == (commits, REVISION)
    monkeypatch.setenv("HF_HUB_CACHE", str(host.hub))
    (snapshot.parents[1] / "refs" / "main").write_text(older.name)
    found = DatasetSource("train_dataset", "train", again.train_dataset)
    rows = found.find(SearchFolders(host.directory, host.directory), [])
    assert len(rows.rows) == 3 * 20 and rows.source.count(REVISION[:12]) == rows.source.count(older.name[:12]) == 1


def test_a_run_that_continues_keeps_its_commits(host, monkeypatch):
    snapshot = in_cache(host.hub, {"train.jsonl": ROWS}, kind="datasets")
    newer = snapshot.with_name(REVISION[::-1])
    newer.mkdir()
    list_files(newer)
    (snapshot.parents[1] / "refs" / "main").write_text(newer.name)
    continued = RunDirectory(str(host.directory / "run"), "run", "continues", "", 4, 2)
    entry = {"asked": REVISION, "revision": REVISION, "folder": str(snapshot)}
    (host.directory / "run").mkdir()
    (host.directory / "run" / "data.json").write_text(json.dumps({"train_dataset": {"hub": {NAME: entry}}}))
    loaded = experiment(host, NAME)
    (kept,) = resolved_datasets(loaded, host, continued)
    (anew,) = resolved_datasets(loaded, host, continued._replace(state="new"))
    (asked,) = resolved_datasets(experiment(host, NAME, "train_dataset.revision=main"), host, continued)
    assert (kept.value, anew.value, asked.value) == (REVISION, newer.name, newer.name)


def test_a_list_of_revisions_has_one_for_each_path(host):
    with pytest.raises(ConfigError) as refusal:
        experiment(host, NAME, "train_dataset.revision=[v1,v2]")
    (problem,) = refusal.value.problems
    assert problem.key == "train_dataset.revision" and "has 2 revisions, and" in problem.message


@pytest.mark.parametrize("path", ["addition", ""])
def test_rows_of_a_task_have_no_path(host, path):
    assert against(experiment(host, path, *([] if path else ["task.name=addition"])), host) == []


@pytest.mark.parametrize(
    "path", ["rows.jsonl", "rows.parquet", "data/rows.json", "./data/gsm8k", "/nowhere/rows", "rows"]
)
def test_a_missing_dataset_is_reported_with_the_searched_places(host, path):
    (reason,) = against(experiment(host, path), host)
    assert reason.startswith(f"there is no file or folder {path} (searched: ")
    assert path.startswith("/") or str(host.directory) in reason


@pytest.mark.parametrize(
    ("file", "content", "key", "words"),
    [
        (
            "rows/other.jsonl",
            ROWS,
            KEY,
            "none in its folder data; set the path of a file",
        ),
        ("rows/train.jsonl", "\n", KEY, "train.jsonl has no rows: it is empty"),
        ("rows/train.json", "[]", KEY, "train.json has no rows: it is empty"),
        ("rows/train.jsonl", ROWS, "train_dataset.batch_size", "21 rows make a batch, but {place} has only 20: lower"),
        (
            "rows/train.json",
            "[1, 2]",
            "train_dataset.batch_size",
            "21 rows make a batch, but {place} has only 2: lower",
        ),
    ],
)
def test_too_few_rows_are_reported_before_the_start(host, file, content, key, words):
    place = host.directory / file
    place.parent.mkdir()
    place.write_text(content)
    plan = build_plan(experiment(host, "rows", "train_dataset.batch_size=21"), host=host)
    (need,) = plan.needs
    assert need.key == key and words.format(place=place) in need.message
    enough = ("train_dataset.batch_size=21", "train_dataset.drop_last=false")
    assert (against(experiment(host, "rows", *enough), host) == []) is (key != KEY)


@pytest.mark.parametrize(
    ("row", "words", "problem"),
    [
        ('{"question": "1+1="}', (), "rows.jsonl:2: 'prompt' is missing; it has question (map field names with "),
        ('{"question": "1+1=", "answer": "2"}', ("+train_dataset.fields.prompt=question",), None),
        ('{"question": "1+1=", "answer": "2"}', ("+train_dataset.fields.prompt=text",), "rows.jsonl:2: 'text' "),
        ('{"prompt": 5}', (), "rows.jsonl:2: 'prompt' is 5, neither a text nor a list of messages"),
        ("[1, 2", (), "rows.jsonl:2: is not a line of JSON: "),
    ],
)
def test_the_columns_of_the_first_row_are_checked_before_the_start(host, row, words, problem):
    (host.directory / "rows.jsonl").write_text(f"\n{row}\n")
    found = against(experiment(host, "rows.jsonl", "train_dataset.batch_size=1", *words), host)
    assert [each for each in found if problem is None or problem not in each] == []
    assert len(found) == (problem is not None)


@pytest.mark.parametrize(("task", "words"), [("addition", ()), ("counting", ("+task.args.num_rows=100",))])
def test_a_batch_larger_than_the_task_is_reported_before_the_start(host, task, words):
    size = "train_dataset.batch_size=9000"
    (reason,) = against(experiment(host, task, size, f"task.name={task}", *words), host)
    assert reason.startswith(f"9000 rows make a batch, but the train split of task {task} has only ")
    assert against(experiment(host, task, f"task.name={task}"), host) == []


@pytest.mark.parametrize(("path", "num_packages"), [("foo.parquet", 0), ("nofolder", 0), ("org/tiny", 2)])
def test_packages_are_required_only_for_formats_that_need_them(host, monkeypatch, path, num_packages):
    monkeypatch.setattr("launcher.plan.datasets.find_spec", lambda package: None)
    packages = [reason for reason in against(experiment(host, path), host) if "needs the package" in reason]
    assert len(packages) == num_packages


@pytest.mark.parametrize(
    ("path", "words"), [("rows.csv", "has an unsupported format"), ("", "names no data; set train_dataset.path=")]
)
def test_an_impossible_dataset_path_is_refused(host, path, words):
    result = against(experiment(host, path), host)
    assert any(words in reason for reason in result)


def test_missing_held_out_rows_are_reported_too(host):
    plan = build_plan(experiment(host, "addition", "valid_dataset={path: away.jsonl}"), host=host)
    assert [need.key for need in plan.needs] == ["valid_dataset.path"]


def test_a_cached_dataset_is_used_at_its_commit(host):
    in_cache(host.hub, {"train.jsonl": ROWS}, kind="datasets")
    (host.hub / "datasets--org--tiny" / "refs" / "v2").write_text(REVISION)
    for words in ((), ("train_dataset.revision=v2",)):
        loaded = experiment(host, NAME, *words)
        assert against(loaded, host) == []
        auto = {each.key: each for each in build_plan(loaded, host=host).auto}
        assert auto["train_dataset.revision"].value == REVISION
        assert not fetch_from_hub(loaded, host)


def test_an_interrupted_download_is_not_used(host):
    snapshot = in_cache(host.hub, {"train-0.jsonl": ROWS}, kind="datasets")
    list_files(snapshot, "train-1.jsonl")
    loaded = experiment(host, NAME)
    assert any("a start downloads it first" in text for text in build_plan(loaded, host=host).warnings)
    (snapshot / "train-1.jsonl").write_text(ROWS)
    assert not any("downloads" in text for text in build_plan(loaded, host=host).warnings)


def unlisted(host):
    """As `load_dataset` leaves it, which fetches what one subset needs."""
    snapshot = in_cache(host.hub, {"train.jsonl": ROWS}, kind="datasets")
    (snapshot.parents[1] / "trees" / f"{REVISION}.json").unlink()
    return snapshot


def test_a_part_that_another_program_fetched_is_completed_by_a_start(online, host):
    snapshot, loaded = unlisted(host), experiment(host, NAME)
    (warning,) = [text for text in build_plan(loaded, host=host).warnings if "a start downloads it first" in text]
    assert f"{NAME} is perhaps only in part in the Hugging Face cache" in warning
    assert fetch_from_hub(loaded, host) and (snapshot / "test.jsonl").is_file()
    assert online.given == ["test.jsonl"], "what was there is not fetched again"
    assert not fetch_from_hub(loaded, host)


@pytest.mark.parametrize("switch", ["HF_HUB_OFFLINE", None])
def test_a_part_is_used_where_nothing_can_be_downloaded(online, host, monkeypatch, capsys, switch):
    unlisted(host)
    online.down = True
    if switch:
        monkeypatch.setenv(switch, "1")
    loaded = experiment(host, NAME)
    assert against(loaded, host) == []
    assert fetch_from_hub(loaded, host) is (switch is None)
    assert (switch is None) == (
        "the run uses what is in the cache, which may be a part of it" in capsys.readouterr().err
    )
    assert not any("downloads" in text for text in build_plan(loaded, host=host).warnings) or switch is None


def test_a_dataset_that_may_not_be_downloaded_is_one_error(host, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (reason,) = against(experiment(host, NAME), host)
    for words in ("HF_HUB_OFFLINE is set", f"python -m areal_like.models.fetch --dataset {NAME}", str(host.hub)):
        assert words in reason


@pytest.fixture
def online(host, monkeypatch, tmp_path):
    """A Hub with a dataset of two files."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "train.jsonl").write_text(ROWS)
    (tmp_path / "there" / "test.jsonl").write_text(ROWS.replace("+1=", "+2="))
    with hub(tmp_path / "there", kind="datasets") as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        monkeypatch.setenv("HF_HUB_CACHE", str(host.hub))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        yield server


def test_a_start_fetches_it_and_the_run_reads_it_without_a_network(online, host, capsys):
    pytest.importorskip("datasets")
    loaded = experiment(host, NAME)
    assert fetch_from_hub(loaded, host)
    assert f"{KEY}: fetching {NAME} from the Hugging Face Hub" in capsys.readouterr().err
    assert sorted(online.given) == ["test.jsonl", "train.jsonl"]
    num_requests = len(online.requests)
    plan = build_plan(loaded, host=host)
    assert against(loaded, host) == [] and not fetch_from_hub(loaded, host)
    revision = next(each.value for each in plan.auto if each.key == "train_dataset.revision")
    dataset = loaded.config.train_dataset
    dataset.revision = revision
    result = DatasetSource("train_dataset", "train", dataset).find(SearchFolders(host.directory, host.directory), [])
    assert len(result.rows) == 20 and REVISION[:12] in result.source
    assert len(online.requests) == num_requests, "all of it is in the cache"


@pytest.mark.parametrize("fault", ["no such dataset", "the Hub is down"])
def test_a_failed_download_is_tried_once_and_gives_one_message(online, host, capfd, fault):
    """Downloads by themselves try again for half a minute."""
    name = "org/other" if fault == "no such dataset" else NAME
    online.down = fault == "the Hub is down"
    with pytest.raises(ConfigError) as refusal:
        fetch_from_hub(experiment(host, name), host)
    (problem,) = refusal.value.problems
    assert problem.key == KEY and "the Hub refused the download (" in problem.message
    assert f"python -m areal_like.models.fetch --dataset {name}" in problem.message
    assert "Traceback" not in problem.message
    assert online.requests.count(f"/api/datasets/{name}") == 1
    assert capfd.readouterr().err.count("\n") == 1, "what is fetched, and nothing else"


def test_models_and_datasets_are_refused_together(online, host):
    online.down = True
    with pytest.raises(ConfigError) as refusal:
        fetch_from_hub(experiment(host, NAME, "model.path=org/model"), host)
    assert [problem.key for problem in refusal.value.problems] == ["model.path", KEY]


def test_the_chat_file_of_the_documentation_is_accepted(host, monkeypatch):
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text()
    text = page.partition("# chat.yaml\n")[2].partition("```")[0]
    (host.directory / "chat.yaml").write_text(text)
    loaded = load(host.directory / "chat.yaml")
    assert loaded.config.train_dataset.path == "org/conversations"
    assert against(loaded, host) == []
