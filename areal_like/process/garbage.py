"""Garbage collection in a process that has started."""

import gc

NEW_OBJECTS = 10_000
"""Between two collections. Requests in flight hold thousands of objects: with the usual 700, collections never
end, look through what is in use, and find hardly anything."""


def settle() -> None:
    """What the start has made lives until the end: no collection looks through it. Later ones are rare."""
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])
