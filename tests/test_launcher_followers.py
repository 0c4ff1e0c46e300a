"""A key that followed another one in a run does so again when the run is resumed with another value."""

from launcher.followers import followers, references
from launcher.resume import allocated_anew

FOLLOWS = {"actor.temperature": "gconfig.temperature", "ref.temperature": "actor.temperature"}


def test_the_keys_that_say_another_one_s_value_are_found():
    tree = {"a": {"b": "${c.d}", "e": "x-${c.d}", "f": [1]}, "c": {"d": 1}, "g": "${temperature}"}
    assert dict(references(tree)) == {"a.b": "c.d", "g": "gconfig.temperature"}


def test_what_follows_a_changed_key_follows_it_again_and_so_do_its_own_followers():
    values = {"gconfig": {"temperature": 0.5}, "actor": {"temperature": 0.5}, "ref": {"temperature": 0.5}}
    for name in ("temperature", "gconfig.temperature"):
        assert followers(values, FOLLOWS, [f"{name}=0.9"]) == [
            "actor.temperature=${gconfig.temperature}",
            "ref.temperature=${actor.temperature}",
        ]
    assert followers(values, FOLLOWS, ["seed=2"]) == []


def test_what_has_a_value_of_its_own_keeps_it():
    values = {"gconfig": {"temperature": 0.5}, "actor": {"temperature": 0.7}}
    assert followers(values, FOLLOWS, ["gconfig.temperature=0.9"]) == []
    values["actor"]["temperature"] = 0.5
    assert followers(values, FOLLOWS, ["gconfig.temperature=0.9", "actor.temperature=0.8"]) == []


def test_how_devices_are_shared_out_follows_what_a_role_is_told():
    assert allocated_anew(["seed=2"]) == []
    assert allocated_anew(["seed=2", "model.backend=fsdp:d1"]) == ["allocation_mode=auto"]
    assert allocated_anew(["actor.backend=fsdp:d1", "allocation_mode=embedded:d1+fsdp:d1"]) == []
