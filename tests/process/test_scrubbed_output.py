"""Secrets that a process knows are removed from what it prints and passes on."""

import io
import sys

import pytest

from areal_like.observe.writer import stored_error
from areal_like.process import scrubbed_output
from areal_like.process.scrubbed_output import SECRET_NAMES, ScrubbedBytes, know_secrets, scrub_output, scrubbed

PLANTED = "planted-in-a-file"


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
