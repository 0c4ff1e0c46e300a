"""Errors that end a process of a run, errors of HTTP calls, and failures of infrastructure."""


class Failure(Exception):
    """Ends the process with a message for the user, without a traceback."""

    kind = "failed"


class ProgramKilled(Failure):
    """A program that this process has started was killed from outside, or for want of memory."""

    kind = "killed"


DAMAGED = "damaged weights v"
"""Begins the kind of a failure that the version of the weights ends."""

MAX_REASON = 400
"""Characters of another package's message that are shown."""

NOT_STAGED = 410
"""HTTP status of a commit of weights that are not staged (any more)."""


class FinalFailure(Failure):
    """A failure that another attempt would repeat, so none is made."""

    kind = "final"


class DamagedWeights(Failure):
    """The weights in this process differ from those that were published, whose hashes were right. Another process may
    load the same version; if that finds them damaged too, the run ends."""

    def __init__(self, version: int, message: str) -> None:
        super().__init__(message)
        self.kind = f"{DAMAGED}{version}"


class TimedOut(Failure):
    """A wait exceeded its timeout."""

    kind = "timeout"


class HttpError(Exception):
    """An HTTP call was answered with an error status; a route raises it to answer so."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Unreachable(Exception):
    """An HTTP call got no answer."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(f"{address}: {why}")
        self.address, self.why = address, why


class InfrastructureError(Exception):
    """A reward, task or workflow raises it where what it depends on has failed: a service, a sandbox, a machine. The
    answer is then neither right nor wrong: after retries it is left without a reward."""


def ends_task(fault: BaseException) -> bool:
    """Whether the running task was cancelled. Else a CancelledError is that of a task that it waited for: an error as
    any other."""
    import asyncio  # not where a plan is made

    task = asyncio.current_task()
    return isinstance(fault, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def brief_reason(fault: BaseException) -> str:
    """A compiler's messages have many lines, the first ones with the reason."""
    lines = [line.strip() for line in str(fault).splitlines() if line.strip()]
    return f"{type(fault).__name__}: {' '.join(lines[:3])}"[:MAX_REASON]
