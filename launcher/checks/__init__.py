"""Checks of a plan: missing resources, problems of the configuration, warnings."""
