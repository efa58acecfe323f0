"""Errors and log events begin in one way: lower case unless it is a name, and no full stop at the end.

`tidegate.errors` has the forms. Only texts that a call itself has are checked, not those of variables.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/tidegate"
NAMES = frozenset({"Iceberg", "Kafka", "Resolved", "Spark"})
"""Names with one capital. Those with more (TiKV, PD, ALTER) show themselves."""
ROOTS = frozenset({"TidegateError", "InvalidInput", "Undecodable", "Retryable", "Fenced", "Fatal"})
HELPERS = frozenset({"event", "known"})
"""Functions that log a text, or make an error of it, and need no argument `why` or `fix`."""
LOGGERS = frozenset({"LOG", "_log"})
LIBRARIES = ("kvclient", "simulator", "tidb", "tikv", "workload")
"""Folders whose callers know what is to be done, so that an error need not say it."""
CLASS = re.compile(r"^class (\w+)\(([\w, ]+)\):", re.MULTILINE)
CODE = re.compile(r"\[CDC:\w+\]")
Made = tuple[str, ast.Call]
"""A call, and the name of what is called."""


def error_names(texts: Iterable[str]) -> set[str]:
    """The classes of errors, direct or not."""
    bases = [(name, set(above.split(", "))) for text in texts for name, above in CLASS.findall(text)]
    names = set(ROOTS)
    while more := {name for name, above in bases if above & names} - names:
        names |= more
    return names


def starts(node: ast.expr) -> Iterator[str]:
    """The texts with which a value may begin."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            yield text
        case ast.BinOp(left=left, op=ast.Add()):
            yield from starts(left)
        case ast.IfExp(body=body, orelse=orelse):
            yield from (*starts(body), *starts(orelse))


def ends(node: ast.expr) -> Iterator[str]:
    """The texts with which a value may end."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=[*_, ast.Constant(value=str(text))]):
            yield text
        case ast.BinOp(op=ast.Add(), right=right):
            yield from ends(right)
        case ast.IfExp(body=body, orelse=orelse):
            yield from (*ends(body), *ends(orelse))


def begins_well(text: str) -> bool:
    first = re.match(r"[A-Za-z]+", CODE.sub("", text))
    return first is None or first[0][0].islower() or first[0] in NAMES or any(map(str.isupper, first[0][1:]))


def ends_well(text: str) -> bool:
    return not text.endswith(".") or text.endswith("...")


def calls_in(code: str, errors: set[str]) -> list[Made]:
    """Calls that make an error or log an event, with the name of what is called."""
    found: list[Made] = []
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Call(func=ast.Name(id=name), keywords=keywords):
                said = {keyword.arg for keyword in keywords} & {"why", "fix"}
                if name in errors or name in HELPERS or said:
                    found.append((name, node))
            case ast.Call(func=ast.Attribute(value=ast.Name(id=logger), attr=name)) if logger in LOGGERS:
                found.append((name, node))
    return found


@functools.cache
def calls_of_source() -> dict[str, list[Made]]:
    """The calls of each file under src/tidegate that has any."""
    texts = {
        str(path.relative_to(SOURCE)): path.read_text()
        for path in SOURCE.rglob("*.py")
        if "proto" not in path.parts
    }
    errors = error_names(texts.values())
    assert {"DiskFull", "RowTooLargeError", "Resigned"} <= errors
    some = re.compile(rf"\b(?:{'|'.join(errors | HELPERS)})\(|\b(?:why|fix)=|\b(?:{'|'.join(LOGGERS)})\.")
    return {path: calls_in(text, errors) for path, text in texts.items() if some.search(text)}


def wrong_texts(made: Iterable[Made]) -> list[tuple[int, str]]:
    """Lines and texts of errors and events that begin or end in another way."""
    found = []
    for _, call in made:
        parts = [*call.args, *(one.value for one in call.keywords if one.arg in ("where", "why", "fix"))]
        for part in parts:
            found += [(call.lineno, text) for text in starts(part) if not begins_well(text)]
            found += [(call.lineno, text) for text in ends(part) if not ends_well(text)]
    return found


def without_remedy(made: Iterable[Made]) -> list[int]:
    """Lines of errors that a person has to act on and that do not say how."""
    return [
        call.lineno
        for name, call in made
        if name in ("InvalidInput", "Fatal") and "fix" not in {keyword.arg for keyword in call.keywords}
    ]


def test_errors_and_events_begin_in_lower_case_and_end_without_a_stop() -> None:
    found = [(path, *one) for path, made in calls_of_source().items() for one in wrong_texts(made)]
    assert not found, "see the forms in src/tidegate/errors.py; NAMES has the names"


def test_an_error_that_a_person_must_act_on_says_what_to_do() -> None:
    acted_on = {path: made for path, made in calls_of_source().items() if path.split("/")[0] not in LIBRARIES}
    found = [f"{path}:{line}" for path, made in acted_on.items() for line in without_remedy(made)]
    assert not found


def test_other_beginnings_and_ends_are_found() -> None:
    code = (
        'raise Fatal("Rows are lost", why="it ends.", fix="start again ...")\n'
        'raise Fenced(f"[CDC:ErrAny]The {slot} is taken" if slot else "gone.", where="PD at x")\n'
        'raise Torn("Kafka does not answer" + "ever.", fix="TiKV\'s log")\n'
        'event(LOG, 20, "Puller waits", why=f"{words} end.")\n'
        'LOG.warning("A reader waits")\n'
        '_refused("No table", fix=f"{name} is lower")\n'
        'known(error, "The work failed", "place")\n'
        'print("Anything else.")\n'
    )
    made = calls_in(code, {"Fatal", "Fenced", "Torn"})
    assert wrong_texts(made) == [
        (1, "Rows are lost"),
        (1, "it ends."),
        (2, "[CDC:ErrAny]The "),
        (2, "gone."),
        (3, "ever."),
        (4, "Puller waits"),
        (4, " end."),
        (5, "A reader waits"),
        (6, "No table"),
        (7, "The work failed"),
    ]
    late = calls_in('raise InvalidInput("it is late")\nraise Retryable("later")\n', set(ROOTS))
    assert without_remedy([*made, *late]) == [1]
