"""Descriptions of the configuration: help, JSON Schema, and YAML output."""
