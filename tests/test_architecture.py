"""docs/architecture.md names files and classes that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_file_on_the_page_exists():
    files = set(re.findall(r"`([\w/]+/[\w/]*(?:\.py|/))`", PAGE))
    assert len(files) > 40
    assert [file for file in sorted(files) if not any((ROOT / top / file).exists() for top in ("", "areal_like"))] == []


def test_every_class_on_the_page_exists():
    code = "\n".join(
        file.read_text(encoding="utf-8") for top in ("areal_like", "launcher") for file in (ROOT / top).rglob("*.py")
    )
    classes = set(
        re.findall(
            r"`([A-Z][A-Za-z]*[a-z][A-Za-z]*)`",
            PAGE,
        )
    )
    assert len(classes) > 50
    assert [name for name in sorted(classes) if not re.search(rf"^class {name}\b", code, re.MULTILINE)] == []


def test_every_package_is_on_the_page():
    packages = [folder.name for folder in (ROOT / "areal_like").iterdir() if (folder / "__init__.py").exists()]
    assert [package for package in packages if not re.search(rf"\b{package}\b", PAGE)] == []
