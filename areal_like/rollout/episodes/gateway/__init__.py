"""Gateway: routes of OpenAI and Anthropic by which programs talk to the policy. Their calls become training samples."""
