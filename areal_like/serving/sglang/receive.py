"""Receives weights that are sent, in SGLang's environment and beside SGLang: into files, from which it loads them.

SGLang has a way to receive them by itself, but loads each bucket into the live model as it comes: nothing could be
checked before, nothing is generated meanwhile, and when the sender dies in between, a half-loaded model is left.

One line of JSON comes in for each time, and one goes out when it is done. Ends with its input.
"""

import json
import sys
from pathlib import Path

from areal_like.weights.errors import BadWeights, GroupBroken
from areal_like.weights.index import parse_index
from areal_like.weights.receive import receive_folder
from areal_like.weights.rendezvous import Rendezvous


def receive(line: str) -> dict[str, str]:
    said = json.loads(line)
    meeting = Rendezvous(**said["meeting"])
    try:
        receive_folder(meeting, meeting.first_rank, parse_index(said["index"], "index"), Path(said["folder"]))
    except BadWeights as refusal:
        return {"refused": str(refusal)}
    except GroupBroken as broken:
        return {"group_broken": str(broken)}
    except Exception as fault:
        return {"failed": f"{type(fault).__name__}: {fault}"}
    return {}


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(receive(line)), flush=True)


if __name__ == "__main__":
    main()
