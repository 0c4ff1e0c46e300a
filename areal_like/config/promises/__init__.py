"""What was promised, key by key, and how far each is."""
