"""What turns rewards into a gradient: pure functions from tensors to tensors.

Sequences are packed, one behind the other, without padding: a tensor over tokens is 1-D, and `cu_seqlens` (integers,
one more than there are sequences) says where each begins. Everything about a token stands in the token's own place: its
log-probability, its mask, the value of the state in which it was chosen. What a mask leaves out never matters, not even
where it is inf or nan.
"""
