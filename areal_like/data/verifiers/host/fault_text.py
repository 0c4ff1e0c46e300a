"""A fault of an environment in one line."""


def describe(fault: BaseException) -> str:
    """With what caused it."""
    parts: list[str] = []
    seen: BaseException | None = fault
    while seen is not None and len(parts) < 3:
        parts.append(f"{type(seen).__name__}: {seen}" if str(seen) else type(seen).__name__)
        seen = seen.__cause__
    return ", from ".join(parts)[:2000]
