"""The protocols, one folder each: its entry for `codec.registry`, plain twins, encode plan, decode templates.

A protocol knows no other one, and outside of these folders only the registry names any.
"""
