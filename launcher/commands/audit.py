"""`audit RUN`: whether a run has lost a group of answers, or has trained on one twice or too late."""

from collections.abc import Sequence

from areal_like.config.problems import ConfigError, Problem, plural
from areal_like.process.exit_codes import DONE, FAILED
from areal_like.process.run import LEDGER, open_run
from areal_like.rollout.audit import Audit
from areal_like.rollout.ledger import read_ledger
from launcher.runs.named_run import find_run, unknown_words

SHOWN = 20
SOUND = "nothing is wrong: no group was lost, trained on twice, or trained on too late"


def audit_run(name: str, words: Sequence[str]) -> int:
    """Prints the number of groups by status, and the problems; returns 1 if there are any."""
    if problems := unknown_words(words, (), "audit takes only a run"):
        raise ConfigError(problems)
    path = open_run(find_run(name, words, "audit"), own_class=False).rollouts / LEDGER
    if not path.is_file():
        reason = f"{path} does not exist; runs that generate answers have a ledger, once their data is read"
        raise ConfigError([Problem("audit", reason)])
    state, attempts, steps = Audit(), 1, 0
    for event in read_ledger(path):
        state.read(event)
        attempts = max(attempts, event["attempt"])
        if event["event"] in ("trained", "recovered"):
            steps = event["step"] + (event["event"] == "trained")
    print(f"{path}: {plural(steps, 'step')}, {plural(attempts, 'attempt')}")
    counts = state.counts()
    each = ", ".join(f"{count} {status}" for status, count in counts.items())
    print(f"{plural(sum(counts.values()), 'group')}{': ' if each else ''}{each}")
    found = [*state.problems, *state.losses()]
    for problem in found[:SHOWN]:
        print(problem)
    if len(found) > SHOWN:
        print(f"and {plural(len(found) - SHOWN, 'more problem')}")
    if not found:
        limit = "" if state.max_staleness is None else f" (limit: {plural(state.max_staleness, 'weight version')})"
        print(f"{SOUND}{limit}")
    return FAILED if found else DONE
