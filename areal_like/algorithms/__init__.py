"""Pure functions on tensors, from rewards to a loss.

Sequences are packed without padding: a tensor over tokens is 1-D, and `cu_seqlens` (integers, one more than there are
sequences) holds where each sequence begins. All values of a token share its index: its log-probability, its mask, the
value of the state in which it was chosen. Masked values never affect a result, not even inf or nan.
"""
