"""The JSON file in which a benchmark keeps what it measured."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def add_output(parser: ArgumentParser, name: str) -> None:
    default = ROOT / "build" / "bench" / f"{name}.json"
    parser.add_argument("--output", type=Path, default=default, help="file of the results")


def write_report(report: dict[str, Any], output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"written to {output}")
