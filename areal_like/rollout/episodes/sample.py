"""Sample: one generated answer, as token ids with the facts of their generation."""

from dataclasses import dataclass


class RowError(ValueError):
    """A row whose prompt cannot be generated for."""


@dataclass(slots=True)
class Sample:
    """One generated answer. Its text is without the stop text or stop token."""

    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: str
    text: str = ""
    stop_text: str | None = None
    """The text of `stop` that ended it."""

    @property
    def is_truncated(self) -> bool:
        return self.finish == "length"

    @property
    def ends_by_token(self) -> bool:
        """Whether its last token is a stop token."""
        return self.finish == "stop" and self.stop_text is None
