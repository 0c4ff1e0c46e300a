"""What a number of a seed stands for: a kind of run, what happens to whom in it, and when. Pure."""

from dataclasses import dataclass, replace
from random import Random

STEPS = 24
"""Of every run but those of slow kinds."""
KILL, STOP, HANG, CUT, SLOW = "kill", "stop for a while", "stop for good", "cut its connections", "answer slowly"
GARBAGE, CLOCK, DISK, CHECKPOINT = "answer garbage", "jump back", "be full for a while", "be cut"
ENDS_THE_RUN = (("guardian", KILL), ("launcher", KILL), ("launcher", HANG))
"""Without them a run ends, and is completed by `resume=`; a guardian that is stopped is continued."""


@dataclass(frozen=True)
class Kind:
    """`roles`: whose processes can be killed and stopped. `others`: what else can happen, as (whom, what)."""

    name: str
    steps: int
    weight: int
    roles: tuple[str, ...]
    others: tuple[tuple[str, str], ...] = ()


USUAL = ("guardian", "launcher", "rollout", "episodes", "rewards", "trainer", "server")
MACHINE = (("the clock", CLOCK), ("the disk", DISK), ("the checkpoint", CHECKPOINT))
CUTS = tuple((role, CUT) for role in ("rollout", "episodes", "trainer", "server"))
KINDS = (
    Kind("embedded", STEPS, 4, USUAL, (*MACHINE, *CUTS)),
    Kind("etcd", STEPS, 3, (*USUAL, "etcd"), (*MACHINE, *CUTS, ("etcd", CUT), ("etcd", SLOW))),
    Kind("agent", STEPS, 2, (*USUAL, "agent"), CUTS),
    Kind("environment", STEPS, 1, (*USUAL, "environment"), CUTS),
    Kind("own engine", STEPS, 1, ("server",), (("engine", SLOW), ("engine", GARBAGE))),
    Kind("vllm", 6, 1, (*USUAL, "engine"), CUTS),
)
SECOND_CHECKPOINT = 7
"""After so many steps there are two complete checkpoints: a run whose only one is damaged cannot be resumed."""
LATEST = 0.4
"""Share of the steps after which most things happen at the latest: later the run could have ended before."""
AT_THE_END = 0.2
"""Share of what is killed or stopped that is so around the last step: by then there may be nothing left of it."""
LAST_STEPS = 2


@dataclass(frozen=True)
class Case:
    """`step`: after which it happens; 0: while the run starts. `share`: which process of several, or where a file is
    cut."""

    seed: int
    number: int
    kind: str
    target: str
    action: str
    step: int
    delay_s: float
    lasts_s: float
    share: float

    @property
    def text(self) -> str:
        when = f"after step {self.step}" if self.step else "at the start"
        lasts = f" for {self.lasts_s:.1f} s" if self.action not in (KILL, HANG, CHECKPOINT, CLOCK, CUT) else ""
        return f"{self.kind}: {self.target}: {self.action}, {when} + {self.delay_s:.1f} s{lasts}"


def draw(seed: int, number: int, kinds: tuple[str, ...] = (), actions: tuple[str, ...] = ()) -> Case:
    """The same for the same arguments; `kinds` and `actions` limit what is drawn."""
    random = Random(f"chaos {seed} {number}")
    among = [kind for kind in KINDS if not kinds or kind.name in kinds]
    while True:
        kind = random.choices(among, [each.weight for each in among])[0]
        if kind.others and random.random() < 0.35:
            target, action = random.choice(kind.others)
        else:
            target, action = random.choice(kind.roles), random.choice((KILL, KILL, STOP, HANG))
        if not actions or action in actions:
            break
    step = random.randint(0, int(LATEST * kind.steps)) if random.random() < 0.8 else 0
    if action in (CLOCK, DISK, CUT):
        step = max(1, step)
    elif action == CHECKPOINT:
        step = max(SECOND_CHECKPOINT, step)
    case = Case(
        seed,
        number,
        kind.name,
        target,
        action,
        step,
        delay_s=round(random.uniform(0, 1.0 if step else 6.0), 2),
        lasts_s=round(random.uniform(1, 6), 2),
        share=random.random(),
    )
    if action in (KILL, STOP, HANG) and random.random() < AT_THE_END:
        step, delay_s = kind.steps - random.randint(0, LAST_STEPS), round(random.uniform(0, 0.3), 2)
        return replace(case, step=step, delay_s=delay_s)
    return case


def steps_of(kind: str) -> int:
    return next(each.steps for each in KINDS if each.name == kind)
