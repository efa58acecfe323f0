"""The demo: every process of the main path, a live view of them, and a comparison at the end."""
