"""How weights travel from trainer to servers, and how both sides know that they arrived.

A publication of version v is a folder of contiguous buckets of tensors, with the hash of each, and perhaps a probe: a
prompt whose log-probabilities trainer and servers must agree on.
"""
