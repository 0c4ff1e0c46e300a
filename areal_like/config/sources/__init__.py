"""Sources of a configuration: files, groups, `defaults:` lists and overrides, and their composition by Hydra."""
