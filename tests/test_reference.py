"""The generated pages agree with the code, and list what handlers read and raise."""

import ast
import inspect
import re
import textwrap

import pytest
from starlette.routing import Route
from tools.reference import FOLDER, PAGES, described, method_of, page, raised, routes

from tidegate.config import values
from tidegate.errors import CODES

VALUES = [
    *values.KV_MODES,
    *values.FLAVOURS,
    *values.COMPRESSIONS,
    *values.LARGE_OPTIONS,
    *values.MESSAGE_COMPRESSIONS,
    *values.SASL_MECHANISMS,
    *values.PARTITION_RULES,
    *values.INTEGRITY_LEVELS,
    *values.CORRUPTION_LEVELS,
]


def of_route(route: Route) -> str:
    return f"{method_of(route)} {route.path}"


READERS = ("number", "body.get", "given.get", "query.get", "request.query_params.get")


def names_read(handler: object) -> set[str]:
    """The members of a body and the parameters of a query that a handler reads itself."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(handler)))):  # type: ignore[arg-type]
        if isinstance(node, ast.Call) and ast.unparse(node.func) in READERS:
            found |= texts(node)
        elif isinstance(node, ast.GeneratorExp) and ast.unparse(node.elt).startswith("number("):
            found |= texts(node.generators[0].iter)
    return found


def texts(node: ast.AST) -> set[str]:
    constants = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
    return {value for value in constants if isinstance(value, str) and value.isidentifier()}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    assert (FOLDER / name).read_text() == page(name), "run: make docs"


@pytest.mark.parametrize("route", routes(), ids=of_route)
def test_a_route_names_what_it_reads_and_codes_that_exist(route: Route) -> None:
    _, parts = described(route)
    request = parts.get("Query", "") + parts.get("Body", "")
    assert not [name for name in names_read(route.endpoint) if f"`{name}`" not in request]
    assert set(re.findall(r"CDC:Err\w+", parts.get("Errors", ""))) <= CODES.keys()


def test_every_code_in_the_source_has_a_meaning() -> None:
    assert raised() == CODES.keys()


def test_the_settings_name_every_value_that_is_checked() -> None:
    text = (FOLDER / "reference" / "settings.md").read_text()
    assert not [value for value in VALUES if value not in text]
