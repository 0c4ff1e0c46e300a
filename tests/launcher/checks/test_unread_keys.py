"""Keys that a run does not read: warnings for the command line, a list for the file."""

from launcher.plan.build import build_plan
from launcher.plan.render import render
from tests.support.planning import ROOT, load_text, loaded, machine_with, plan_of


def test_file_values_for_another_algorithm_are_listed_and_no_warning():
    keys = "actor.eps_clip_higher", "actor.use_decoupled_loss"
    plan = plan_of("grpo", "algorithm=prime_rl")
    assert not [warning for warning in plan.warnings if warning.startswith(keys)]
    (unread,) = plan.unread_body_values
    assert (unread.key, unread.reason) == (keys[0], "has no effect: actor.loss is importance_sampling")
    assert "values of your file that this run does not read" in render(plan)
    typed = plan_of("grpo", "algorithm=prime_rl", "actor.eps_clip_higher=0.3", "actor.recompute_logprob=true")
    assert len([warning for warning in typed.warnings if warning.startswith(keys)]) == 2
    assert plan_of("grpo").unread_body_values == typed.unread_body_values == ()


def test_a_resumed_run_does_not_warn_of_the_keys_of_another_algorithm():
    text = (ROOT / "experiments" / "grpo.yaml").read_text() + "trial_name: mine\n"
    text = text.replace("actor:\n", "actor:\n  loss: importance_sampling\n", 1)
    key = "actor.eps_clip_higher"
    first, resumed = (build_plan(load_text(text, *words), host=machine_with()) for words in ((), ("resume=mine",)))
    assert any(warning.startswith(f"{key}: has no effect") for warning in first.warnings)
    assert not any(warning.startswith(f"{key}: has no effect") for warning in resumed.warnings)
    assert key in [each.key for each in resumed.unread_body_values]


def test_the_file_s_evaluation_keys_are_no_warning_where_the_command_line_turns_evaluation_off():
    plan = plan_of("grpo", "valid_dataset=null")
    assert not [warning for warning in plan.warnings if warning.startswith("evaluator.")]
    assert [each.key for each in plan.unread_body_values] == ["evaluator.freq_steps"]
    (typed,) = plan_of("grpo", "valid_dataset=null", "evaluator.freq_steps=5").warnings
    assert typed.startswith("evaluator.freq_steps: has no effect: valid_dataset is null")


def test_keys_of_an_engine_that_does_not_run_are_one_warning():
    words = ("sglang.enable_nan_detection=true", "vllm.seed=3")
    plan = plan_of("grpo", *words, "rollout=embedded")
    (warning,) = [each for each in plan.warnings if each.startswith(("sglang.", "vllm."))]
    assert warning == ("sglang.enable_nan_detection, vllm.seed: have no effect: the inference engine is embedded")
    assert not [each for each in plan_of("grpo", words[0], "rollout=sglang").warnings if each.startswith("sglang.")]
    (alone,) = [each for each in plan_of("grpo", words[0]).warnings if each.startswith("sglang.")]
    assert alone == "sglang.enable_nan_detection: has no effect: the inference engine is embedded"


def test_keys_without_effect_are_printed_at_a_start(monkeypatch, capsys):
    from launcher.commands import run
    from launcher.supervisor import guardian

    words = ("train_dataset.num_workers=4", "trial_name=auto")
    messages = loaded("grpo", *words)
    monkeypatch.setattr(run, "build_plan", lambda *_, **__: plan_of("grpo", *words))
    monkeypatch.setattr(guardian, "run_guarded", lambda *_: 0)
    assert run.start(messages) == 0
    assert capsys.readouterr().err.startswith("warning: train_dataset.num_workers: has no effect")
