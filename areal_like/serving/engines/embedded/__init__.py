"""The embedded inference server: an LLM engine in plain PyTorch, and its HTTP server."""
