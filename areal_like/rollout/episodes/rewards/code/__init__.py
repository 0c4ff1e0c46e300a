"""The built-in reward `code`: programs of answers are run against tests, in the sandbox."""
