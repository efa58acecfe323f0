"""How the puller's scripts write what they have in common."""

from __future__ import annotations

from tidegate.model.span import Span


def span_of(text: str) -> Span:
    """`[a,m)`; `[a,)` has no upper bound."""
    if not (text.startswith("[") and text.endswith(")") and text.count(",") == 1):
        raise ValueError(f"{text}: a range is written [a,m)")
    start, end = text[1:-1].split(",")
    return Span(start.encode(), end.encode())


def text_of(span: Span) -> str:
    """The same, back."""
    return f"[{span.start.decode()},{span.end.decode()})"
