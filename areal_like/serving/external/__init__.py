"""The server process before an external engine, vLLM or SGLang."""
