"""Checks: of one value, of several keys together, of user code, of the rules that keys declare; and their registry."""
