"""The protocols, one folder each: its entry for `codec.registry`, plain twins, encode plan, decode templates.

Protocols do not import each other, and outside of these folders only the registry names them.
"""
