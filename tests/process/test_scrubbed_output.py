"""Secrets that a process knows are removed from what it prints and passes on."""

import io
import json
import os
import sys
import traceback

import pytest

from areal_like.observe.writer import stored_error
from areal_like.process import scrubbed_output
from areal_like.process.scrubbed_output import SECRET_NAMES, ScrubbedBytes, know_secrets, scrub_output, scrubbed

PLANTED = "planted-in-a-file"
ESCAPED = """-----BEGIN A KEY-----
planted "line" one of it
planted 'line' t\\wo, é
end"""
"""As a key in a file, with all that Python and JSON write differently."""


@pytest.fixture
def planted(monkeypatch):
    """In a variable with an ordinary name, of a file with secrets."""
    monkeypatch.setenv("JUDGE_URL", PLANTED)
    monkeypatch.setenv(SECRET_NAMES, "JUDGE_URL")
    monkeypatch.setattr(scrubbed_output, "_of_configuration", set())


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 100])
def test_a_secret_is_removed_wherever_reads_cut_it(planted, parts):
    whole = f"{PLANTED} and {PLANTED[:-1]}, {PLANTED}\nplanted {PLANTED[:9]}".encode()
    size = -(-len(whole) // parts)
    scrubber = ScrubbedBytes()
    passed = [scrubber.read(whole[at : at + size]) for at in range(0, len(whole), size)]
    assert b"".join([*passed, scrubber.rest()]) == scrubbed(whole.decode()).encode()
    assert scrubber.rest() == b""


@pytest.fixture
def escaped(monkeypatch):
    monkeypatch.setenv("SERVICE_API_KEY", ESCAPED)
    monkeypatch.setattr(scrubbed_output, "_of_configuration", set())


@pytest.mark.parametrize(
    "write",
    [
        str,
        repr,
        json.dumps,
        lambda text: json.dumps(text, ensure_ascii=False),
        lambda _: str(dict(os.environ)),
        lambda _: str(os.environ),
        lambda _: json.dumps(dict(os.environ)),
        lambda text: repr(RuntimeError(f"no \"answer\" by '{text}'")),
        lambda _: json.dumps({"error": f"no answer with {os.environ}"}),
        lambda _: repr(json.dumps(dict(os.environ))),
        lambda text: "".join(traceback.format_exception(ExceptionGroup("two", [RuntimeError(text)]))),
        lambda text: " | ".join(line.strip() for line in text.splitlines()),
    ],
)
def test_a_secret_is_removed_however_it_is_written(escaped, write):
    written = scrubbed(write(ESCAPED))
    assert "<secret>" in written
    assert not [word for word in ("BEGIN", "planted", "line", "t\\wo") if word in written], written


def test_the_lines_of_a_secret_are_removed_when_they_are_printed_one_by_one(escaped, monkeypatch):
    printed = io.StringIO()
    stream = scrubbed_output.ScrubbedStream(printed)
    for line in ESCAPED.splitlines():
        print("key:", line, file=stream)
    assert printed.getvalue() == "key: <secret>\n" * 3 + "key: end\n"


@pytest.mark.parametrize("size", [1, 2, 5, 24, 48, 1000])
def test_a_secret_of_several_lines_is_removed_as_a_whole_wherever_reads_cut_it(escaped, size):
    whole = f"{ESCAPED}, {ESCAPED[:30]}\n{ESCAPED!r}".encode()
    scrubber = ScrubbedBytes()
    passed = [scrubber.read(whole[at : at + size]) for at in range(0, len(whole), size)]
    assert b"".join([*passed, scrubber.rest()]) == b"<secret>, <secret>\nplanted \n'<secret>'"


def test_only_what_may_begin_a_secret_waits_for_the_next_read(planted):
    scrubber = ScrubbedBytes()
    assert scrubber.read(b"loading ") == b"loading "
    assert scrubber.read(b"the plan") == b"the "
    assert scrubber.read(b" of it") == b"plan of it"


def test_the_error_of_an_answer_is_stored_without_secrets_of_files(planted):
    assert stored_error(f"refused by {PLANTED}") == "refused by <secret>"


def test_a_secret_that_is_known_later_is_removed_from_streams_that_are_there(planted, monkeypatch):
    printed = io.StringIO()
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "stderr", printed)
    scrub_output()
    stream = sys.stderr
    know_secrets(["known-later", "${oc.env:NAME}"])
    print("known-later", PLANTED, "${oc.env:NAME}", file=stream)
    assert printed.getvalue() == "<secret> <secret> ${oc.env:NAME}\n"
    assert stored_error("known-later") == "<secret>"
