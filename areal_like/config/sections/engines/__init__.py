"""The sections of the inference engines."""
