"""prime-rl, its hosted training and its command line."""
