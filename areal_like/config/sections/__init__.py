"""The sections of the configuration: one file per concern."""
