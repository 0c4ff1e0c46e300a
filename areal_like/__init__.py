"""Reinforcement learning of language models, driven by Hydra and YAML."""

__version__ = "0.1.0"
