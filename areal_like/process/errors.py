"""How a process of a run may end by its own fault."""


class Failure(Exception):
    """Ends the process with a message for the user, without a traceback."""

    kind = "failed"


NOT_STAGED = 410
"""Status of the answer to who wants weights taken into use that are not, or no more, beside those in use."""


class FinalFailure(Failure):
    """Another attempt would end in the same place, so none is made."""

    kind = "final"


class TimedOut(Failure):
    """Something that was waited for did not come within its limit."""

    kind = "timeout"


class HttpError(Exception):
    """The other side answered that it will not."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Unreachable(Exception):
    """There was no answer."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(f"{address}: {why}")
        self.address, self.why = address, why
