"""What the installed vLLM's own parser says of a command line."""

from areal_like.serving.flag_check import FlagParser

SCRIPT = """
import sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
said = parser.parse_args(sys.argv[1:])
try:
    validate_parsed_serve_args(said)
except (TypeError, KeyError, ValueError) as wrong:
    parser.error(str(wrong))
"""
KEYS = {
    "tensor-parallel-size": "rollout.backend",
    "pipeline-parallel-size": "rollout.backend",
    "max-lora-rank": "actor.lora_rank",
}
FLAG_PARSER = FlagParser("vllm", SCRIPT, KEYS)
