"""The controller: the process that decides what is generated, by which weights, and what is trained on."""
