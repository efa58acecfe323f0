"""The demo: every process of the main path, a live view of them, and the proof at the end."""
