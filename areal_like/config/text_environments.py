"""How a text environment is played, unless `workflow.args` say otherwise."""

MAX_TURNS = 16
CALL_TIMEOUT_S = 60.0
MAX_PROCESSES = 8
