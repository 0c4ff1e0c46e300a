"""Restarts and recoveries after the exit of a process."""

from areal_like.process.errors import DamagedWeights
from launcher.supervisor.restart_policy import RestartPolicy


def kinds(policy, *deaths, code=-9, ready=True, first=False):
    return [policy.decide(name, code, ready, first).kind for name in deaths]


def test_servers_and_workers_are_replaced_and_others_cause_a_recovery():
    policy = RestartPolicy("auto", 3)
    assert kinds(policy, "server/0", "episodes/1") == ["replace", "replace"]
    assert kinds(policy, "trainer/0", "rollout/0") == ["recover", "recover"]


def test_replacements_are_limited_and_the_count_restarts_at_a_step():
    policy = RestartPolicy("auto", 2)
    assert kinds(policy, *["server/0"] * 3) == ["replace", "replace", "fail"]
    policy.step()
    assert kinds(policy, "server/0") == ["replace"]


def test_each_server_is_counted_by_itself():
    policy = RestartPolicy("auto", 1)
    assert kinds(policy, "server/0", "server/1", "server/0") == ["replace", "replace", "fail"]


def test_recoveries_are_limited_and_the_count_restarts_at_a_checkpoint():
    policy = RestartPolicy("fault", 2)
    assert kinds(policy, "trainer/0", "rollout/0") == ["recover", "recover"]
    policy.step()
    assert kinds(policy, "trainer/0") == ["fail"]
    policy.checkpoint()
    assert kinds(policy, "trainer/0") == ["recover"]


def test_a_process_that_fails_before_it_is_ready_is_not_restarted():
    decision = RestartPolicy("auto", 3).decide("rollout/0", 1, False, True)
    assert decision == ("fail", "a restart would fail again, so it is not restarted")


def test_without_recovery_servers_are_still_replaced():
    policy = RestartPolicy("disabled", 3)
    assert kinds(policy, "server/0", "trainer/0") == ["replace", "fail"]


def test_no_retries_means_none():
    assert kinds(RestartPolicy("auto", 0), "server/0", "trainer/0") == ["fail", "fail"]


def test_a_failure_before_readiness_is_final_unless_it_was_a_kill():
    policy = RestartPolicy("auto", 3)
    assert kinds(policy, "server/0", "trainer/0", code=1, ready=False, first=True) == ["fail", "fail"]
    assert kinds(policy, "server/0", "trainer/0", code=-9, ready=False, first=True) == ["replace", "recover"]
    assert kinds(policy, "server/0", "trainer/0", code=1, ready=False, first=False) == ["replace", "recover"]
    killed = policy.decide("server/1", 1, ready=False, first=True, kind="killed")
    assert killed.kind == "replace", "its engine was killed"


def test_exits_with_code_0_are_counted_across_steps_of_others():
    policy = RestartPolicy("auto", 2)
    assert kinds(policy, "episodes/0", "episodes/0", code=0) == ["replace", "replace"]
    policy.step()
    decision = policy.decide("episodes/0", 0, ready=True, first=False)
    assert decision.kind == "fail"
    assert "3 times" in decision.why and "os._exit(0)" in decision.why and "recover.retries=2" in decision.why
    assert kinds(policy, "episodes/1", code=0) == ["replace"], "the others are counted by themselves"
    assert kinds(RestartPolicy("auto", 3), "episodes/0", code=0, ready=False, first=True) == ["fail"]


def test_a_configuration_error_ends_a_run_in_any_process_at_any_time():
    assert kinds(RestartPolicy("auto", 3), "episodes/0", "trainer/0", code=2) == ["refuse", "refuse"]


def test_a_version_that_two_servers_find_damaged_ends_the_run():
    policy = RestartPolicy("auto", 3)

    def kind(name, version):
        return policy.decide(name, 1, False, True, DamagedWeights(version, "tensor x").kind).kind

    assert [kind("server/0", 3), kind("server/0", 4), kind("server/1", 3)] == ["replace", "replace", "fail"]
