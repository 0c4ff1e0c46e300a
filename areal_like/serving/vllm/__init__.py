"""vLLM: how it is started, spoken to, guarded, and given new weights."""
