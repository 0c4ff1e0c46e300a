"""The head alone: log-probabilities and entropy from hidden states, and their gradients."""

import torch

from areal_like.algorithms.logprobs import token_logprobs
from tests.gpu.machine import device
from tests.gpu.report import Aim, Report
from tests.gpu.timing import measured

TOKENS, VOCABULARY, HIDDEN = 16384, 151936, 1024
SMALL_TOKENS, SMALL_VOCABULARY, SMALL_HIDDEN = 64, 300, 32
FORWARD_MS, BACKWARD_MS = Aim(most=20), Aim(most=40)
MEMORY_GB = Aim(most=4)
"""All logits in float32 would be 10 GB."""


def head(report: Report) -> None:
    tokens, vocabulary, hidden = (
        (SMALL_TOKENS, SMALL_VOCABULARY, SMALL_HIDDEN) if report.small else (TOKENS, VOCABULARY, HIDDEN)
    )
    torch.manual_seed(0)
    with device():
        hidden_TH = torch.randn(tokens, hidden, dtype=torch.bfloat16, requires_grad=True)
        head_VH = torch.randn(vocabulary, hidden, dtype=torch.bfloat16).mul_(hidden**-0.5).requires_grad_()
        targets_T = torch.randint(vocabulary, (tokens,))
    for with_entropy in (False, True):
        name = "with entropy" if with_entropy else "log-probabilities"

        def forward(with_entropy: bool = with_entropy) -> torch.Tensor:
            logprobs_T, entropy_T = token_logprobs(hidden_TH, head_VH, targets_T, with_entropy=with_entropy)
            return logprobs_T.mean() if entropy_T is None else logprobs_T.mean() + 0.01 * entropy_T.mean()

        def both(forward=forward) -> None:
            hidden_TH.grad = head_VH.grad = None
            torch.autograd.backward(forward())

        with torch.no_grad():
            alone = measured(forward)
        kept = measured(forward)
        whole = measured(both)
        report.figure(f"{name}: without gradient", 1000 * alone.seconds, "ms", FORWARD_MS)
        report.figure(f"{name}: forward", 1000 * kept.seconds, "ms", FORWARD_MS)
        report.figure(f"{name}: backward", 1000 * (whole.seconds - kept.seconds), "ms", BACKWARD_MS)
        if whole.peak_gb is not None:
            report.figure(f"{name}: memory", whole.peak_gb, "GB", MEMORY_GB)
    difference(report, hidden_TH, head_VH, targets_T)


def difference(report: Report, hidden_TH: torch.Tensor, head_VH: torch.Tensor, targets_T: torch.Tensor) -> None:
    """From logits in float64, on a few tokens."""
    few = slice(0, 64)
    with torch.no_grad():
        logprobs_T, entropy_T = token_logprobs(hidden_TH[few], head_VH, targets_T[few], with_entropy=True)
        exact_TV = torch.log_softmax(hidden_TH[few].double() @ head_VH.double().t(), -1)
    assert entropy_T is not None
    expected = exact_TV.gather(-1, targets_T[few, None]).squeeze(-1)
    report.limit("log-probabilities off by at most", (logprobs_T - expected).abs().max().item(), Aim(most=2e-3))
    exact_entropy = -(exact_TV.exp() * exact_TV).sum(-1)
    report.limit("entropy off by at most", (entropy_T - exact_entropy).abs().max().item(), Aim(most=2e-3))
