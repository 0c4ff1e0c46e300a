"""The server process in front of an external engine, vLLM or SGLang."""
