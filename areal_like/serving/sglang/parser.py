"""What the installed SGLang's own parser says of a command line."""

from areal_like.serving.flag_check import FlagParser

SCRIPT = """
import sys
from sglang.srt.server_args import prepare_server_args
prepare_server_args(sys.argv[1:])
"""
KEYS = {
    "tp-size": "rollout.backend",
    "pp-size": "rollout.backend",
    "trust-remote-code": "actor.trust_remote_code",
    "cuda-graph-max-bs-decode": "sglang.cuda_graph_max_bs",
    "cuda-graph-bs-decode": "sglang.cuda_graph_bs",
    "model-loader-extra-config": "sglang.enable_multithread_load",
}
FLAG_PARSER = FlagParser("sglang", SCRIPT, KEYS)
