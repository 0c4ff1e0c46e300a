"""Receives sent weights into files for SGLang, in a process beside it and in SGLang's environment.

SGLang's own way loads each bucket into the live model: nothing can be checked before, nothing is generated meanwhile,
and a sender that dies leaves a half-loaded model.

Reads one line of JSON per transfer, and writes one when it is done. Ends with its input.
"""

import json
import sys
from pathlib import Path

from areal_like.weights.errors import BadWeights, GroupBroken
from areal_like.weights.index import parse_index
from areal_like.weights.kept_group import KeptGroup
from areal_like.weights.receive import receive_folder
from areal_like.weights.rendezvous import Rendezvous


def receive(line: str, group: KeptGroup) -> dict[str, str]:
    message = json.loads(line)
    rendezvous = Rendezvous(**message["meeting"])
    try:
        index, folder = parse_index(message["index"], "index"), Path(message["folder"])
        receive_folder(rendezvous, rendezvous.first_rank, index, folder, group)
    except BadWeights as fault:
        return {"refused": str(fault)}
    except GroupBroken as fault:
        return {"group_broken": str(fault)}
    except Exception as fault:
        return {"failed": f"{type(fault).__name__}: {fault}"}
    return {}


def main() -> None:
    group = KeptGroup()
    for line in sys.stdin:
        print(json.dumps(receive(line, group)), flush=True)


if __name__ == "__main__":
    main()
