"""What a server of a run answers to whom: exactly these paths. They ask, and command nothing."""

HEALTH = "/health"
QUERY_PATHS = ("/v1/models", "/metrics", "/version")
TOKENIZE_PATHS = ("/tokenize", "/detokenize")
GENERATE_PATHS = ("/v1/completions", "/v1/chat/completions", "/inference/v1/generate")
OPEN_PATHS = (HEALTH, *QUERY_PATHS)
"""Open to everybody, always."""
CLIENT_PATHS = (*TOKENIZE_PATHS, *GENERATE_PATHS)
"""These cost the model's time. They want the run's token and nothing else of a run, but where generation is open."""


def access_paths(is_open: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Those that are open, and those that want the token alone. `is_open`: everybody may generate."""
    return ((*OPEN_PATHS, *CLIENT_PATHS), ()) if is_open else (OPEN_PATHS, CLIENT_PATHS)


TOKEN_BYTES, PROMPTS_AT_ONCE = 16, 8
MIB = 1 << 20
MAX_CLIENT_BYTES = 64 * MIB


def max_client_bytes(context_length: int) -> int:
    """Of a client, in bytes: some prompts as long as the context, as text or as token ids."""
    return min(MAX_CLIENT_BYTES, MIB + PROMPTS_AT_ONCE * TOKEN_BYTES * context_length)
