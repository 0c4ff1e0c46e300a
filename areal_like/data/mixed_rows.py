"""The training rows of several environments, mixed into one dataset."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson
import xxhash

from areal_like.data.checked_rows import CheckedRows
from areal_like.data.mixing import Mix
from areal_like.data.row_table import InspectedRow
from areal_like.data.tasks.base import Row, RowSequence


class MixedSequence(RowSequence):
    """Rows of several sources by their numbers in a mix."""

    def __init__(self, parts: Sequence[CheckedRows], mix: Mix) -> None:
        self._parts, (self._sources, self._numbers) = parts, mix

    def __len__(self) -> int:
        return len(self._sources)

    def __iter__(self) -> Iterator[Row]:
        return (self.row(index) for index in range(len(self)))

    def row(self, index: int) -> Row:
        part, number = self.locate(index)
        return self._parts[part].rows[number]

    def locate(self, index: int) -> tuple[int, int]:
        """The source of a row, and its number there."""
        return int(self._sources[index]), int(self._numbers[index])


@dataclass(frozen=True)
class MixedRows(CheckedRows):
    """Rows that know their environment; each is inspected and read as a row of that environment alone."""

    def environment(self, number: int) -> str:
        return self._locate(number)[0].environment(0)

    def _inspect(self, number: int) -> InspectedRow:
        part, own = self._locate(number)
        return part.inspect([own])[0]._replace(row=number)

    def row(self, number: int, expected: int) -> Row:
        part, own = self._locate(number)
        return part.row(own, expected)

    def _locate(self, number: int) -> tuple[CheckedRows, int]:
        rows = self.rows
        assert isinstance(rows, MixedSequence)
        part, own = rows.locate(number)
        return self.parts[part], own


def mixed(section: str, parts: Sequence[CheckedRows], mix: Mix) -> CheckedRows:
    """`parts` in the order of the mix; `section` is the key that messages about all of them begin with."""
    rows = MixedSequence(parts, mix)
    content = xxhash.xxh3_64_hexdigest(b"".join(each.astype("<i8").tobytes() for each in mix))

    def place(number: int) -> str:
        part, own = rows.locate(number)
        return parts[part].place(own)

    return MixedRows(
        rows=rows,
        section=section,
        source=" and ".join(each.source for each in parts),
        place=place,
        digest=xxhash.xxh3_64_hexdigest(orjson.dumps([content, [[each.name, each.digest] for each in parts]])),
        has_messages=any(each.has_messages for each in parts),
        tokenizer=parts[0].tokenizer,
        max_length=None,
        is_measured=False,
        parts=parts,
    )
