"""What clients that are not of the run may ask: the routes of OpenAI's and vLLM's interfaces."""
