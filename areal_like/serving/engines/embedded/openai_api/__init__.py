"""Routes of OpenAI's and vLLM's interfaces, for clients other than the run."""
