"""LIKE and REGEXP: constant patterns, which are prepared once.

A LIKE pattern is a tuple of character keys (`collation.sign_key`), None for `_` and True for `%`. Trailing
spaces count, as in TiDB. REGEXP uses RE2, and ignores case if the column's collation does.
"""

from __future__ import annotations

from typing import Final

from tidegate.errors import InvalidInput
from tidegate.filter.expression.fold import folded, null
from tidegate.filter.expression.fold import text as as_text
from tidegate.filter.expression.syntax import Refusal
from tidegate.filter.expression.typed import BOOLEAN, Domain, Typed
from tidegate.tidb.table_filter import found
from tidegate.tidb.types import collation

Part = bytes | bool | None
ONE: Final = None
ANY: Final = True


def like(text: Typed, pattern: Typed, escape: Typed, at: int) -> Typed:
    """`text LIKE pattern ESCAPE escape`."""
    if text.is_null or pattern.is_null:
        return null(at)
    written = _constant(pattern, "a LIKE pattern")
    stop = _constant(escape, "ESCAPE")
    if len(stop) > 1:
        raise Refusal("ESCAPE takes one character", escape.at)
    text = as_text(text, "LIKE")
    collate = _collation(text)
    signs = _signs(written, collate)
    value = tuple(_parts(signs, stop, collate))
    return folded(Typed("like", Domain.INT, at, (text,), value, *BOOLEAN, collate=collate))


def _signs(written: str, collate: str) -> list[str]:
    """The characters of a pattern. For a binary column, its bytes as one character each."""
    return list(written.encode().decode("latin-1") if collate == "binary" else written)


def _parts(signs: list[str], stop: str, collate: str) -> list[Part]:
    key = (lambda sign: sign.encode("latin-1")) if collate == "binary" else collation.sign_key(collate)
    parts: list[Part] = []
    at = 0
    while at < len(signs):
        sign = signs[at]
        # At the end of a pattern the escape character is a plain character, as in TiDB.
        if stop and sign == stop and at + 1 < len(signs):
            at += 1
            parts.append(key(signs[at]))
        elif sign == "%":
            # `%%` matches what `%` does, so one part is enough (as in TiDB's `CompilePattern`).
            parts += [] if parts and parts[-1] is ANY else [ANY]
        else:
            parts.append(ONE if sign == "_" else key(sign))
        at += 1
    return parts


def regexp(text: Typed, pattern: Typed, at: int) -> Typed:
    """`text REGEXP pattern`."""
    if text.is_null or pattern.is_null:
        return null(at)
    written = _constant(pattern, "a REGEXP pattern")
    text = as_text(text, "REGEXP")
    collate = _collation(text)
    if collate == "binary":
        raise Refusal("REGEXP over binary columns is not in the subset", at)
    regex = ("(?i)" if collation.ignores_case(collate) else "") + written
    # Used once here, so that a bad expression is refused when the filter is made.
    try:
        found(regex, [""])
    except InvalidInput as error:
        raise Refusal(f"the regular expression cannot be read: {error.why}", pattern.at) from None
    return folded(Typed("regexp", Domain.INT, at, (text,), regex, *BOOLEAN))


def _constant(node: Typed, what: str) -> str:
    if not node.is_const or node.domain is not Domain.STRING:
        raise Refusal(f"{what} must be a constant text", node.at)
    data: bytes = node.value
    return data.decode(errors="replace")


def _collation(text: Typed) -> str:
    if text.collate not in collation.KNOWN:
        raise Refusal(f"collation {text.collate} is not known here", text.at)
    return text.collate
