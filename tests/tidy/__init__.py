"""The repository checks its own form."""
