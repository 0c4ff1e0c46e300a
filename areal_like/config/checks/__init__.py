"""What must hold: of one value, of what it refers to, and of several keys together."""
