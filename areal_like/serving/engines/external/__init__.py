"""What engines that are other programs have in common: installation, command line, start, attaching."""
