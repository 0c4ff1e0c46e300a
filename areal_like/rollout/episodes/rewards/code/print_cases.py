"""Runs in the sandbox: the program of an answer, once for each input. What it should print is not known here.

Standard library only, as nothing else can be seen there.
"""

import json
import subprocess
import sys

PROGRAM, ANSWER, INPUTS = "print_cases.py", "main.py", "inputs.json"
PRINTED = "printed"
MAX_PRINTED = 1 << 20
"""Characters of one output; the rest is left out."""


def main() -> None:
    """A line for each input: the exit code, and what was printed."""
    with open(INPUTS, encoding="utf-8") as file:
        inputs = json.load(file)
    for given in inputs:
        with open(PRINTED, "wb") as printed:
            done = subprocess.run(
                [sys.executable, "-I", "-B", ANSWER],
                input=given.encode(),
                stdout=printed,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        with open(PRINTED, encoding="utf-8", errors="replace") as printed_text:
            print(json.dumps([done.returncode, printed_text.read(MAX_PRINTED)]), flush=True)


if __name__ == "__main__":
    main()
