"""Answers of a model behind an OpenAI-compatible API, for evaluations: requests, and texts in place of tokens."""
