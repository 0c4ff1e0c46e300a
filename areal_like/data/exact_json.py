"""JSON with integers of any size: orjson makes floats of those beyond 64 bits, and does not write them."""

import json
import re
from codecs import BOM_UTF8
from typing import Any

import orjson

DIGITS = re.compile(rb"\d{19}")
"""A shorter integer has 64 bits."""


def parse_json(text: bytes) -> Any:
    """Raises ValueError; orjson's errors are some. A byte order mark, as some editors write, is left out."""
    text = text.removeprefix(BOM_UTF8)
    found = orjson.loads(text)
    return found if DIGITS.search(text) is None else json.loads(text)


def dump_json(value: Any, sort_keys: bool = False) -> bytes:
    """Raises TypeError for what is no JSON."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError as fault:
        if "64-bit" not in str(fault):
            raise
    return json.dumps(value, separators=(",", ":"), sort_keys=sort_keys, ensure_ascii=False, allow_nan=False).encode()
