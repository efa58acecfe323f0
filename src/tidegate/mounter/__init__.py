"""Decodes entries with their schemas into row changes and DDL events. Pure: no I/O, clock or thread."""
