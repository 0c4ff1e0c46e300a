"""How long a reward usually takes, and from when on an answer takes far longer."""

import statistics
from collections import deque

KEPT, MIN_TIMES = 64, 8
FAR_FACTOR, VERY_FAR_FACTOR = 3.0, 10.0
MIN_FAR_S = 0.05
"""Below this, the machine may be the reason."""
UNKNOWN_FAR_S = 1.0
CHUNK_S = 0.005
"""Quick answers are sent together for so long a time, as each message costs some."""


class UsualTime:
    """The median of the latest answers."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=KEPT)
        self._count = 0
        self._median_s: float | None = None

    def add(self, seconds: float) -> None:
        self._times.append(seconds)
        self._count += 1
        if self._count >= MIN_TIMES and self._count % MIN_TIMES == 0:
            self._median_s = statistics.median(self._times)

    @property
    def far_s(self) -> float:
        return UNKNOWN_FAR_S if self._median_s is None else max(MIN_FAR_S, FAR_FACTOR * self._median_s)

    @property
    def very_far_s(self) -> float:
        return self.far_s * VERY_FAR_FACTOR / FAR_FACTOR

    @property
    def chunk(self) -> int:
        """How many answers to send together."""
        return 1 if self._median_s is None else max(1, int(CHUNK_S / max(self._median_s, 1e-6)))
