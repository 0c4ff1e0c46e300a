"""A default of a key stands in its section alone."""

import importlib
import inspect
import pkgutil
from dataclasses import MISSING, fields

from areal_like import algorithms
from areal_like.config.sections.actor import AdvantageConfig, NormConfig, PPOActorConfig, RatioConfig


def test_no_function_of_an_algorithm_repeats_the_default_of_a_key() -> None:
    sections = (PPOActorConfig, AdvantageConfig, NormConfig, RatioConfig)
    keys = {each.name: each.default for section in sections for each in fields(section)}
    own = {name for name, default in keys.items() if default is not MISSING and not str(default).startswith("${")}
    checked = 0
    for info in pkgutil.walk_packages(algorithms.__path__, f"{algorithms.__name__}."):
        for name, function in vars(importlib.import_module(info.name)).items():
            if inspect.isfunction(function) and function.__module__ == info.name:
                parameters = inspect.signature(function).parameters.values()
                repeated = [each.name for each in parameters if each.name in own and each.default is not each.empty]
                assert not repeated, f"{info.name}.{name}: {repeated}"
                checked += sum(each.name in own for each in parameters)
    assert checked > 20
