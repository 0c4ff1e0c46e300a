"""The commands of the command line; each is imported when it is used."""
