"""Makes docs/files.md: what each file of the product does, from the first sentence of its docstring."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("launcher", "areal_like")
_INTRO = """\
# Files

This page is made from the code by `make docs`; do not edit it. It has one line for each file: the first sentence of its
docstring. [architecture.md](architecture.md) describes how they work together.
"""


def render() -> str:
    """The whole page."""
    lines = _INTRO.splitlines()
    for folder in packages():
        lines += ["", f"## {folder.relative_to(ROOT)}/", ""]
        if purpose := first_sentence(folder / "__init__.py"):
            lines += [purpose, ""]
        lines += ["| file | what it does |", "|---|---|"]
        lines += [
            f"| `{file.name}` | {first_sentence(file)} |" for file in sorted(folder.glob("*.py")) if described(file)
        ]
    return "\n".join(lines) + "\n"


def packages() -> list[Path]:
    """Folders with code, each before those below it."""
    found = {file.parent for top in FOLDERS for file in (ROOT / top).rglob("*.py") if described(file)}
    return sorted(found, key=lambda folder: (FOLDERS.index(folder.relative_to(ROOT).parts[0]), folder))


def described(file: Path) -> bool:
    return file.name not in ("__init__.py", "__main__.py")


def first_sentence(file: Path) -> str:
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.!?]) (?=[A-Z`])", paragraph)[0]
    return sentence.rstrip(":").replace("|", "\\|")
