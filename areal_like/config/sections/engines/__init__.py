"""The sections of the inference engines, and what their keys mean."""
