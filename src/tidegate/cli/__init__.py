"""The command line: one command group per file, each a thin call; main builds the tree."""
