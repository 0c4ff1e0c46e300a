"""Updates of weights and adapters during generation."""
