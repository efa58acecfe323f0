"""Typed messages as JSON: one frozen dataclass per message, checked once when it arrives.

A message is an object whose `type` names the class. Its other members are exactly the fields of the class,
because both ends have the same version. `Wire` finds the form of each member by its annotation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, NamedTuple, TypeVar

from tidegate.model.span import Span

Kind = TypeVar("Kind")


class Form(NamedTuple):
    """How a member is written to JSON (`dump`) and read from it (`load`, which raises ValueError)."""

    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]


class _Layout(NamedTuple):
    """The JSON form of a class of messages."""

    word: str
    dumps: tuple[tuple[str, str, Callable[[Any], Any]], ...]
    """For each member its name in JSON, its name in Python, and how it is written."""
    loads: tuple[tuple[str, Callable[[Any], Any]], ...]
    """For each member its name in JSON, and how it is read; in the order of the class's arguments."""
    words: frozenset[str]


class Wire:
    """The messages of one conversation.

    `forms`: forms by annotation, in addition to `FORMS`. `separator` replaces the underscores of Python's
    names in the JSON names of members.
    """

    def __init__(self, forms: Mapping[str, Form] | None = None, separator: str = "_") -> None:
        self._forms = {**FORMS, **(forms or {})}
        self._separator = separator
        self._layouts: dict[type, _Layout] = {}

    def to_json(self, message: object) -> dict[str, Any]:
        """A message as a JSON object."""
        return {"type": self._layout(type(message)).word, **self.dumped(message)}

    def parse(self, message: Mapping[str, Any], kinds: Sequence[type[Kind]]) -> Kind:
        """Parse a message of one of these kinds. Raises ValueError, whose text says what is wrong."""
        named = message.get("type") if isinstance(message, dict) else None
        kind = next((each for each in kinds if self._layout(each).word == named), None)
        if kind is None:
            raise ValueError(f"a message of the type {named!r:.80} does not belong here")
        return self.loaded(kind, {name: value for name, value in message.items() if name != "type"})

    def dumped(self, value: Any) -> dict[str, Any]:
        """The members of a dataclass as a JSON object."""
        dumps = self._layout(type(value)).dumps
        return {word: dump(getattr(value, name)) for word, name, dump in dumps}

    def loaded(self, kind: type[Kind], members: Any) -> Kind:
        """The inverse of `dumped`; raises ValueError."""
        layout = self._layout(kind)
        if not isinstance(members, dict):
            raise ValueError(f"{layout.word} is no object")
        # Exactly these members: two versions that differ refuse each other's messages, and do not take half
        # of one.
        if layout.words != members.keys():
            raise ValueError(f"{layout.word} has the members {sorted(members)}, not {sorted(layout.words)}")
        try:
            return kind(*[load(members[word]) for word, load in layout.loads])
        except ValueError as error:
            raise ValueError(f"{layout.word}: {error}") from error

    def part(self, kind: type[Any]) -> Form:
        """The form of a dataclass inside a message."""
        return Form(self.dumped, lambda value: self.loaded(kind, value))

    def option(self, kind: type[Any]) -> Form:
        """The form of a dataclass, or None, inside a message."""
        form = self.part(kind)
        return Form(
            lambda value: None if value is None else form.dump(value),
            lambda value: None if value is None else form.load(value),
        )

    def parts(self, kind: type[Any]) -> Form:
        """The form of a list of dataclasses."""
        return listed(self.part(kind))

    def add(self, forms: Mapping[str, Form]) -> None:
        """Add forms, which may be made from this conversation's own classes."""
        self._forms |= forms
        # A layout that was made before may lack the new form.
        self._layouts.clear()

    def _layout(self, kind: type) -> _Layout:
        """The JSON form of a class, computed once: a capture sends thousands of messages a second."""
        layout = self._layouts.get(kind)
        if layout is None:
            names = {each.name.replace("_", self._separator): each.name for each in fields(kind)}
            forms = [self._forms[str(each.type)] for each in fields(kind)]
            layout = _Layout(
                re.sub("(?<=[a-z])(?=[A-Z])", self._separator, kind.__name__).lower(),
                tuple(
                    (word, name, form.dump) for (word, name), form in zip(names.items(), forms, strict=True)
                ),
                tuple((word, form.load) for word, form in zip(names, forms, strict=True)),
                frozenset(names),
            )
            self._layouts[kind] = layout
        return layout


def just(*kinds: type) -> Form:
    """A value of one of these types, unchanged."""

    def load(value: Any) -> Any:
        # Not `isinstance`, for which True is an int.
        if type(value) not in kinds:
            raise ValueError(f"{value!r:.80} is not {kinds[0].__name__}")
        return value

    return Form(lambda value: value, load)


def listed(form: Form) -> Form:
    """A list of values of this form; a tuple in Python."""

    def load(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError("a list is none")
        return tuple(form.load(one) for one in value)

    return Form(lambda values: [form.dump(one) for one in values], load)


INT: Final = just(int)


def _text_or_none(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{value!r:.80} is no text")
    return value


def _numbers(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        raise ValueError("an object of numbers is none")
    return {name: INT.load(number) for name, number in value.items()}


def _pair(value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("a pair of numbers is none")
    return INT.load(value[0]), INT.load(value[1])


def _span(value: Any) -> Span:
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(key, str) for key in value):
        raise ValueError("a span is two keys in hex")
    start, end = (bytes.fromhex(key) for key in value)
    if end and start >= end:
        raise ValueError(f"the span {value} is empty")
    return Span(start, end)


FORMS: Final[Mapping[str, Form]] = {
    "int": INT,
    "Timestamp": INT,
    "bool": just(bool),
    "str": just(str),
    "str | None": Form(lambda value: value, _text_or_none),
    "float": just(float, int),
    "Span": Form(lambda span: [span.start.hex(), span.end.hex()], _span),
    "tuple[int, int]": Form(list, _pair),
    "tuple[str, ...]": listed(just(str)),
    "Mapping[str, Timestamp]": Form(dict, _numbers),
    "Mapping[str, int]": Form(dict, _numbers),
}
"""Forms by the annotation of the member."""
