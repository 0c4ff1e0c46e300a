"""The configuration: dataclasses that say what there is, Hydra that composes it, and checks that leave no doubt.

Nothing here imports torch or needs a network.
"""
