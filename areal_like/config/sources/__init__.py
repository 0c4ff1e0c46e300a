"""What is read: files, groups, `defaults:` lists and the words of the command line."""
