"""What a server of a run answers without its token: exactly these paths. They ask, and command nothing."""

HEALTH = "/health"
ASKING = ("/v1/models", "/metrics", "/version")
READING = ("/tokenize", "/detokenize")
GENERATING = ("/v1/completions", "/v1/chat/completions", "/inference/v1/generate")
OPEN_PATHS = (HEALTH, *ASKING, *READING, *GENERATING)
