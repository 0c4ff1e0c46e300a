"""What is learnt from: tasks that make rows, files that hold them, and the tokenizer that makes token ids of text."""
