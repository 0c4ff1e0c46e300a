"""The LLM engine: continuous batching in plain PyTorch over models of transformers."""
