"""Runs programs that a model wrote, or anyone else who is not trusted, without harm to the machine and to the run.

`sandbox.py` has `Sandbox`; `confine.py` is what runs inside before the program, with nothing but the standard library.
"""
