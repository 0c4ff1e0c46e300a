"""Parsing of group requests, and the random noise of sampling."""

from typing import Any

import numpy as np
import pytest
import torch

from areal_like.config.sections.generation import GenerationHyperparameters
from areal_like.serving.engines.embedded.core.sampler import sample_tokens, uniform_noise
from areal_like.serving.requests import BadRequest, Sampling, parse_group, parse_sampling
from tests.support.tiny_models import VOCAB

torch.set_num_threads(1)


def test_noise_is_uniform_and_depends_on_every_argument() -> None:
    seeds, samples, positions = (axis.ravel().astype(np.uint64) for axis in np.meshgrid(*[np.arange(20)] * 3))
    numbers = uniform_noise(seeds, samples, positions)
    assert len(np.unique(numbers)) == 8000
    assert numbers.min() > 0 and numbers.max() < 1
    share, _ = np.histogram(numbers, 20, (0, 1))
    assert np.abs(share - 400).max() < 5 * 400**0.5
    for axis in (20, 400, 1):  # neighbours along each argument are independent
        assert abs(np.corrcoef(numbers[:-axis], numbers[axis:])[0, 1]) < 0.05


def test_a_token_of_probability_zero_is_never_taken() -> None:
    logits = torch.full((3, 4), -torch.inf)
    logits[:, 1:3] = 0.0
    marks = torch.tensor([2.0**-54, 0.5, 1 - 2.0**-53], dtype=torch.float64)
    tokens, logprobs = sample_tokens(logits, torch.ones(3), torch.zeros(3, dtype=torch.bool), marks)
    assert tokens.tolist() == [1, 2, 2]
    torch.testing.assert_close(logprobs.exp(), torch.full((3,), 0.5))


@pytest.mark.parametrize(
    ("key", "neutral", "value", "nonsense"),
    [
        ("top_p", 1.0, 0.9, 0),
        ("top_k", 100_000_000, 5, 2.5),
        ("top_k", -1, 63, "5"),
        ("min_p", 0.0, 0.1, 1.5),
        ("frequency_penalty", 0.0, -0.5, 3),
        ("repetition_penalty", 1.0, 1.1, 0),
        ("min_new_tokens", 0, 3, -1),
        ("stop", None, ["\n"], [""]),
        ("stop", [], ["x", "yz"], [5]),
        ("stop_token_ids", None, [5], [64]),
    ],
)
def test_sampling_parameters_are_parsed_and_nonsense_is_refused(
    key: str, neutral: object, value: Any, nonsense: object
) -> None:
    body = {"id": "g", "prompt": [5], "sampling": {key: neutral, "max_new_tokens": 4}}
    assert parse_group(body, VOCAB).sampling == Sampling(max_new_tokens=4)
    parsed = getattr(parse_group({**body, "sampling": {key: value}}, VOCAB).sampling, key)
    assert parsed == (tuple(value) if isinstance(value, list) else value)
    with pytest.raises(BadRequest, match=f"^gconfig.{key}: "):
        parse_group({**body, "sampling": {key: nonsense}}, VOCAB)


def test_a_group_accepts_what_the_configuration_accepts() -> None:
    """Every key of `gconfig` but those for the number of answers and their seed."""
    defaults: Any = GenerationHyperparameters
    body = {key: value for key, value in vars(defaults()).items() if key not in ("n_samples", "seed")}
    assert parse_sampling(body, VOCAB) == Sampling()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": []}, "prompt: "),
        ({"prompt": [VOCAB]}, "prompt: 64 is not a token"),
        ({"n": 0}, "n: 0"),
        ({"seed": -1}, "seed: -1"),
        ({"sampling": {"temprature": 1}}, "gconfig.temprature: not known"),
        ({"sampling": {"temperature": -1}}, "gconfig.temperature: -1"),
        ({"sampling": {"max_new_tokens": 0}}, "gconfig.max_new_tokens: 0"),
        ({"order": {"key": "1", "place": 2, "of": 2}}, "order.place: 2"),
        ({"order": {"key": "1"}}, "order: "),
        ({"smapling": {}}, "smapling: "),
    ],
)
def test_a_malformed_group_is_refused_with_the_field(changes: dict[str, object], message: str) -> None:
    with pytest.raises(BadRequest, match=f"^{message}"):
        parse_group({"id": "g", "prompt": [5], **changes}, VOCAB)
