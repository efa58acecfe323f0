"""Bounds for the content of a request, because a request with few bytes can be expensive to carry out.

150,000 table rules fit into 2 MB and took a minute and a half to read; for one rule of 3 MB, RE2 took longer.
Requests that people or programs write are far below these bounds: names have at most 64 characters, and a
rule names one or some of them.
"""

from __future__ import annotations

from typing import Any, Final

from tidegate.errors import InvalidInput

TEXT_MAX: Final = 64 << 10
"""Characters of the longest text: a sink URI with many brokers and a certificate."""
RULE_MAX: Final = 8 << 10
"""Characters of a text inside a list: a rule, a pattern, an expression, a name."""
ITEMS_MAX: Final = 5_000
"""Members of a list or an object."""
VALUES_MAX: Final = 50_000
"""The number of all values together."""


def check_bounds(body: dict[str, Any]) -> None:
    """Raises InvalidInput that names the member which is too large. VALUES_MAX bounds its time."""
    values = 0
    left: list[tuple[str, Any]] = [("", body)]
    while left:
        name, value = left.pop()
        values += 1
        if isinstance(value, str):
            most = RULE_MAX if name.endswith("]") else TEXT_MAX
            if len(value) > most:
                raise _too_large(name, f"{len(value):,} characters", f"{most:,}")
        elif isinstance(value, dict | list):
            # Checked before the members are added, so that `left` stays within the bound.
            if len(value) > ITEMS_MAX or values + len(left) + len(value) > VALUES_MAX:
                raise _too_large(name, f"{len(value):,} members", f"{ITEMS_MAX:,}, and {VALUES_MAX:,} in all")
            if isinstance(value, dict):
                left += [(f"{name}.{key[:64]}" if name else key[:64], one) for key, one in value.items()]
            else:
                left += [(f"{name}[{at}]", one) for at, one in enumerate(value)]


def _too_large(name: str, found: str, most: str) -> InvalidInput:
    return InvalidInput(
        f"'{name[-200:]}' is too large",
        where="request body",
        why=f"it has {found}; the most is {most}",
        fix="shorten it: a wildcard or a regular expression matches many names",
    )
