"""The configuration: dataclasses declare the keys, Hydra composes them, checks report every problem at once.

Nothing here imports torch or uses the network.
"""
