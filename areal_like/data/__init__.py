"""Tasks, datasets, tokenizers and packing."""
