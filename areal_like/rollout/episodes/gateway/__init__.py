"""Gateway: OpenAI's routes, by which any program talks to the policy. Its calls become training samples."""
