"""Large numbers as text: bytes and counts."""

GIB, MIB = 1 << 30, 1 << 20


def size_text(size: int) -> str:
    """12.3 GiB, 45 MiB, 112 KiB"""
    for unit, scale in (("GiB", GIB), ("MiB", MIB), ("KiB", 1024)):
        if size >= scale:
            amount = size / scale
            return f"{amount:.1f} {unit}" if amount < 100 else f"{amount:.0f} {unit}"
    return f"{size} B"


def count_text(number: int) -> str:
    """596 M, 8.03 B"""
    for unit, scale in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= scale:
            amount = number / scale
            digits = 2 if amount < 10 else 1 if amount < 100 else 0
            return f"{amount:.{digits}f} {unit}"
    return str(number)
