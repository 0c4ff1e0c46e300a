"""What there is, told: help, documents, JSON Schema, and configurations as YAML."""
