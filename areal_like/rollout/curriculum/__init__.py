"""Which rows are drawn next by their difficulty, and which finished groups are trained on."""
