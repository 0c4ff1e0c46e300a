"""Our own small inference server: continuous batching in plain PyTorch over the models of transformers."""
