"""What our code in the workers of vLLM and SGLang has in common. Runs in their environments."""
