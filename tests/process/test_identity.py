"""Calls are refused without the run's token, and from older attempts and incarnations."""

import os

import pytest

from areal_like.process import identity as identity_module
from areal_like.process.identity import TOKEN_DESCRIPTOR, CallGuard, Identity, call_headers, passed_token
from areal_like.process.scrubbed_output import scrubbed

TRAINER = Identity("trainer", 0)


class TestCallGuard:
    def test_a_call_with_the_token_is_accepted(self):
        assert CallGuard("secret").refuse(call_headers(TRAINER, "secret")) is None

    @pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}])
    def test_a_call_without_the_token_is_refused(self, headers):
        refused = CallGuard("secret").refuse({**call_headers(TRAINER, "secret"), "Authorization": "", **headers})
        assert refused is not None and refused[0] == 401

    def test_a_call_from_an_older_attempt_is_refused(self):
        guard = CallGuard("secret")
        seen: list[int] = []
        guard.on_new_attempt = seen.append
        assert guard.refuse(call_headers(Identity("trainer", 0, attempt=2), "secret")) is None
        refused = guard.refuse(call_headers(Identity("rollout", 0, attempt=1), "secret"))
        assert refused is not None and refused[0] == 409 and "attempt 1" in refused[1]
        assert seen == [2]

    def test_a_call_from_an_older_incarnation_of_the_same_process_is_refused(self):
        guard = CallGuard("secret")
        assert guard.refuse(call_headers(Identity("episodes", 0, 1, 2), "secret")) is None
        assert guard.refuse(call_headers(Identity("episodes", 1, 1, 1), "secret")) is None
        refused = guard.refuse(call_headers(Identity("episodes", 0, 1, 1), "secret"))
        assert refused is not None and refused[0] == 409

    def test_a_call_without_an_attempt_is_refused(self):
        refused = CallGuard("secret").refuse({"Authorization": "Bearer secret"})
        assert refused is not None and refused[0] == 400


def test_a_token_that_was_passed_by_a_descriptor_is_removed_from_what_is_printed(monkeypatch):
    with passed_token("a token of this test") as descriptor:
        monkeypatch.setenv(TOKEN_DESCRIPTOR, str(os.dup(descriptor)))
        monkeypatch.setattr(identity_module, "_taken", "")
        identity_module.take_token()
    assert "of this test" not in scrubbed("it is a token of this test, then")
