"""The command that prepares `builtin:smollm2-135m`; not imported by runs."""
