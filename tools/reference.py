"""Writes docs/reference/*.md from the code: settings, HTTP API, metrics, errors, commands; and the layouts of
kernels.

python -m tools.reference            writes the pages; a test fails if they are out of date
python -m tools.reference --check    names the pages that are out of date; exit code 1 if there are any

The meaning of each thing is written where it is declared: in docstrings of settings and handlers, help texts
of metrics and options, the table of error codes, and the layouts that kernels share with Python
(docs/internals/layouts.md).
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, get_args, get_type_hints

import typer
from click.core import Command, Context, Group
from prometheus_client.metrics import MetricWrapperBase
from starlette.routing import Route

from tidegate import errors, metrics
from tidegate.api import access_rules, app, forward, metrics_page
from tidegate.cli.main import app as commands
from tidegate.config import settings
from tidegate.config.fields import duration_text, kebab
from tidegate.config.sink_uri import READER, SCHEMES, URI_OPTIONS
from tidegate.config.ticdc import TO_COME, TUNING, URI_TO_COME, URI_TUNING
from tidegate.consumer.running.gauges import Gauges
from tidegate.consumer.running.lag import Partition
from tidegate.consumer.running.progress import Progress
from tidegate.errors import CODES, TidegateError
from tidegate.kernel_layout import Layout

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "docs"
SOURCE: Final = ROOT / "src" / "tidegate"
NOTE: Final = "<!-- Written by tools/reference.py from {}: change that, not this page. -->"
NONE: Final = "-"
"""A cell without a value."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table. Pipes in cells are escaped."""
    lines = [list(head), ["---"] * len(head), *map(list, rows)]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def linked(text: str) -> str:
    """A docstring as part of a page: one paragraph, with `docs/...md` and `Docs: ...md` as links."""
    plain = " ".join(text.split())
    return re.sub(r"(?:docs/|(?<=Docs: ))([\w/-]+\.md(?:#[\w-]+)?)", r"[\1](../\1)", plain)


# Settings.

TYPES: Final[Mapping[Any, str]] = {bool: "boolean", int: "integer", str: "text", float: "number"}


@cache
def notes(module: ModuleType) -> dict[str, str]:
    """The docstring below each field, by `Class.field`."""
    found = {}
    for owner in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(owner, ast.ClassDef):
            for field, note in zip(owner.body, owner.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(note, ast.Expr):
                    assert isinstance(field.target, ast.Name)
                    assert isinstance(note.value, ast.Constant)
                    found[f"{owner.name}.{field.target.id}"] = str(note.value.value)
    return found


def settings_page() -> str:
    """Every setting of a changefeed."""
    return f"""# Settings of a changefeed

{NOTE.format("src/tidegate/config")}

A changefeed reads its settings from a TOML file (`tidegate changefeed create --config FILE`) or from `replica_config` in
a request, and from its [sink URI](#sink-uri). The URI wins. Names are in kebab-case in files and URIs, and in snake_case in
JSON. A name that is not on this page is refused, unless it is [TiCDC's](#other-settings-of-ticdc).

A *duration* is text such as `"10m"` or `"1.5s"`, or an integer of nanoseconds. *Secret*: answers and logs show `xxxxx`.
TiCDC: *same* means that TiCDC has the setting under this name.

{"".join(_sections(settings.ReplicaConfig, ""))}{_uri_section()}
{_ticdc_section()}"""


def _sections(owner: type, path: str) -> Iterator[str]:
    """A section and, after it, its subsections. `path`: as in the file, with [[ ]] for a list."""
    hints, inner = get_type_hints(owner), []
    for field in dataclasses.fields(owner):
        kind = hints[field.name]
        below = f"{path.strip('[]')}.{kebab(field.name)}".strip(".")
        if dataclasses.is_dataclass(kind):
            inner.append((kind, f"[{below}]"))
        elif dataclasses.is_dataclass(item := (get_args(kind) or (None,))[0]):
            inner.append((item, f"[[{below}]]"))
    plain = [field for field in dataclasses.fields(owner) if not dataclasses.is_dataclass(hints[field.name])]
    heading = f"`{path}`" if path else "Outside of all sections"
    yield f"## {heading}\n\n"
    yield f"{_about(owner)}\n\n" if path else ""
    yield table(
        ["name", "type", "default", "unit", "TiCDC", "meaning"],
        (_setting(owner, field, hints[field.name], path) for field in plain),
    )
    yield "\n"
    for kind, below in inner:
        assert isinstance(kind, type)
        yield from _sections(kind, below)


def _about(owner: type) -> str:
    """A section's docstring without the name of the section, which is in the heading."""
    text = re.sub(r"^(One )?`[^`]+`( entry)?[:;]? ", "", linked(owner.__doc__ or ""))
    return text[:1].upper() + text[1:]


def _setting(owner: type, field: dataclasses.Field[Any], hint: Any, path: str) -> list[str]:
    kind, unit = field.metadata.get("kind", ""), field.metadata.get("unit", "")
    note = notes(settings).get(f"{owner.__name__}.{field.name}")
    if not note:
        raise ValueError(f"{owner.__name__}.{field.name} says nothing: write a docstring beneath it")
    ours = path == "[tidegate]" or field.metadata.get("ours")
    older = field.metadata.get("older")
    return [
        f"`{kebab(field.metadata.get('key') or field.name)}`",
        _type(kind, hint),
        _default(field.default, kind),
        unit or NONE,
        NONE if ours else f"same; older `{kebab(older)}`" if older else "same",
        linked(note),
    ]


def _type(kind: str, hint: Any) -> str:
    if kind.startswith("duration"):
        return "duration"
    if kind == "secret":
        return "text, secret"
    if items := get_args(hint):
        return "list of tables" if dataclasses.is_dataclass(items[0]) else f"list of {TYPES[items[0]]}s"
    return TYPES[hint]


def _default(value: Any, kind: str) -> str:
    if kind.startswith("duration"):
        return f"`{duration_text(value)}`"
    if isinstance(value, tuple):
        return "`[" + ", ".join(f'"{one}"' for one in value) + "]`"
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`" if value != "" else "empty"


def _uri_section() -> str:
    rows = [[f"`{name}`", f"`{_place(path)}`"] for name, path in sorted(URI_OPTIONS.items())]
    schemes = ", ".join(f"`{one}`" for one in SCHEMES)
    return f"""## Sink URI

    kafka://HOST:PORT[,HOST:PORT]/TOPIC?NAME=VALUE&NAME=VALUE

Schemes: {schemes}; the second connects with TLS. The port is 9092 if none is given. `{READER}:` belongs to changefeeds that
Spark queries create, and is refused in a request. A topic has 1 to 249 of `A-Z a-z 0-9 . _ -`. Each parameter is one of the
settings above; a value is written without quotes, `true` and `false` also as `1` and `0`.

{table(["parameter", "setting"], rows)}"""


def _place(path: Sequence[str]) -> str:
    return kebab(".".join(path))


def _ticdc_section() -> str:
    rows = [
        [
            f"`{kebab(name)}`",
            ", ".join("null" if one is None else _default(one, "") for one in inert) or "any",
        ]
        for name, inert in sorted(TO_COME.items())
    ]
    return f"""## Other settings of TiCDC

These tune TiCDC's own machinery, or belong to sinks that Tidegate does not have. They are accepted and have no effect:
{_names(sorted({kebab(name) for name in TUNING | URI_TUNING}))}.

These are not supported. They are accepted only with a value of the right column:

{table(["setting", "accepted values"], rows)}
These parameters of the URI are refused: {_names(sorted(URI_TO_COME))}.
"""


# HTTP API.


def routes() -> list[Route]:
    """The routes below /api/v2, then those at the root."""
    return [*app.ROUTES, *app.ROOT_ROUTES]


def api_page() -> str:
    """Every route."""
    below = "".join(_route(route, "/api/v2") for route in app.ROUTES)
    root = "".join(_route(route, "") for route in app.ROOT_ROUTES)
    return f"""# HTTP API

{NOTE.format("src/tidegate/api")}

The API is TiCDC's API v2 (tiflow `cdc/api/v2`, ticdc `api/v2`), so TiCDC's own `cdc cli` can use it. Routes that TiCDC does
not have, and members below `tidegate`, are ours. Any capture can be asked; a standby forwards the request to the
owner, except for {_names(forward.OWN)}.

- A body is JSON with `Content-Type: application/json`, {access_rules.MAX_BODY >> 20} MiB at most, sent within {access_rules.BODY_S:.0f} s.
- With `--token-file` a request needs `Authorization: Bearer TOKEN`.
- The Host header must be an IP address, `localhost`, or a name given by `--allow-host`.
- `namespace` and `keyspace` are two names of one thing.
- A ts is an integer of 64 bits. 0 and a missing member mean the same.

Errors of every route, as `{{"error_msg": TEXT, "error_code": CODE}}`:

{table(["status", "code", "when"], _common_errors())}
The page about [errors](errors.md) says what each code means and what to do. A route below names the other codes that it may answer with
status 400.

{below}{root}"""


def _names(texts: Iterable[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


def _common_errors() -> list[list[str]]:
    invalid = "`CDC:ErrAPIInvalidParam`"
    return [
        ["400", invalid, "the request or its settings are wrong"],
        ["401", invalid, "the token is missing or wrong"],
        ["403", invalid, "the Host header is not allowed, or the request comes from another site's page"],
        ["404, 405", "`CDC:ErrAPINotFound`", "no such route, or not with this method"],
        ["413", invalid, "the body is too large"],
        ["415", invalid, "the body is not JSON"],
        ["500", "`CDC:ErrInternalServerError`", "a defect, or an error that no request causes"],
        ["503", "`CDC:ErrUnavailable`", "PD, etcd, the sink or the owner is unavailable; try again"],
    ]


def _route(route: Route, base: str) -> str:
    about, parts = described(route)
    lines = [f"## {method_of(route)} {base}{route.path}", "", linked(about), ""]
    lines += [f"- {name}: {linked(text)}" for name, text in parts.items()]
    return "\n".join(lines) + "\n\n"


def method_of(route: Route) -> str:
    """The method of a route. A GET route also answers HEAD."""
    (method,) = (route.methods or set()) - {"HEAD"}
    return method


def described(route: Route) -> tuple[str, dict[str, str]]:
    """The parts of a handler's docstring: the description, and by name query, body, answer and errors."""
    text = inspect.getdoc(route.endpoint) or ""
    first, *rest = re.split(r"^(Query|Body|Answer|Errors): ", text, flags=re.MULTILINE)
    named, _, about = first.partition(": ")
    if method_of(route) not in named or route.path not in named or "Answer" not in rest:
        raise ValueError(f"the docstring of {method_of(route)} {route.path} lacks its route or its answer")
    parts = dict(zip(rest[::2], rest[1::2], strict=True))
    if "Errors" in parts:
        parts["Errors"] = re.sub(r"\b(Err\w+)", r"`CDC:\1`", parts["Errors"])
    return about[:1].upper() + about[1:], parts


# Metrics.


def metrics_page_text() -> str:
    """Every metric of a server and of a consumer."""
    return f"""# Metrics

{NOTE.format("src/tidegate/metrics.py and src/tidegate/consumer/running/gauges.py")}

In Prometheus' text form. A server has them at `/metrics`, a consumer that runs with `--metrics HOST:PORT` at
`{metrics_page.PATH}` there. A histogram has the samples `..._bucket`, `..._sum` and `..._count`; a server's counters and histograms
also have `..._created`.

## Server

{table(["name", "type", "labels", "unit", "meaning"], _server_metrics())}
## Consumer

{table(["name", "type", "labels", "unit", "meaning"], _consumer_metrics())}"""


def _server_metrics() -> Iterator[list[str]]:
    for metric in vars(metrics).values():
        if isinstance(metric, MetricWrapperBase):
            (family,) = metric.describe()
            yield _metric(family, metric._labelnames)
    for family in metrics.parts.describe():
        yield _metric(family, family._labelnames)


def _consumer_metrics() -> Iterator[list[str]]:
    partition = Partition("topic/0", watermark=1, applied=1, offset=0, read=0, end=1)
    gauges = Gauges(lambda: 0)
    gauges.update(Progress(1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, "", (partition,)))
    for family in gauges.collect():
        yield _metric(family, family.samples[0].labels)


def _metric(family: Any, labels: Iterable[str]) -> list[str]:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return [f"`{name}`", family.type, _names(labels) or NONE, _unit(family.name), family.documentation]


def _unit(name: str) -> str:
    units = {"_bytes_per_second": "bytes/s", "_seconds": "s", "_bytes": "bytes", "_ts": "ms since 1970"}
    return next((unit for end, unit in units.items() if name.endswith(end)), "number")


# Errors.


def errors_page() -> str:
    """Every code and every class of errors."""
    unknown = sorted(raised() ^ CODES.keys())
    if unknown:
        raise ValueError(f"the code and tidegate.errors.CODES differ in {', '.join(unknown)}")
    codes = [[f"`{name}`", linked(code.meaning), linked(code.to_do)] for name, code in sorted(CODES.items())]
    return f"""# Errors

{NOTE.format("src/tidegate/errors.py and the classes in src/tidegate")}

A message says what happened in its first line, and as far as it is known where, why, and what to do in the next ones. Each part
begins in lower case, except with a name, and has no full stop at its end:

```
the owner does not answer
  where: capture b at 10.0.0.2:8300
  why:   UNAVAILABLE: connection refused
  to do: check that its process runs
```

## Codes

Answers of the [API](http-api.md) have a code, and so has the `error` of a changefeed. Names are TiCDC's where TiCDC has the
error.

{table(["code", "meaning", "what to do"], codes)}
## Kinds

Each error is of one of these kinds, by what its caller should do. A command ends with the exit code; the API answers with the
status; a changefeed becomes *failed*, or is retried with a back-off and shown as *warning* meanwhile.

{table(["kind", "meaning", "exit code", "status", "a changefeed"], map(_kind, _kinds()))}
## Classes

{table(["class", "is a", "module", "meaning"], _classes())}"""


def raised() -> set[str]:
    """Every code in the source, except in the table of codes."""
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        if path != SOURCE / "errors.py":
            found.update(re.findall(r"CDC:Err\w+", path.read_text()))
    return found


def _kinds() -> list[type[TidegateError]]:
    return [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, TidegateError)][
        1:
    ]


def _kind(kind: type[TidegateError]) -> list[str]:
    _, status = app.code_of(kind("an error"))
    retried = issubclass(kind, (errors.Retryable, errors.Fenced))
    means = linked(kind.__doc__ or "")
    return [
        f"`{kind.__name__}`",
        means,
        str(kind.exit_code),
        str(status),
        "is retried" if retried else "fails",
    ]


def _classes() -> list[list[str]]:
    """Classes below the kinds: name, base, module and the first line of the docstring."""
    found = {one.__name__: one.__name__ for one in _kinds()}
    rows, before = [], -1
    declared = list(_declared())
    while len(found) != before:
        before = len(found)
        for module, node in declared:
            base = next((name for name in map(ast.unparse, node.bases) if name in found), None)
            if base and node.name not in found:
                found[node.name] = base
                first = (ast.get_docstring(node) or "").partition("\n\n")[0]
                rows.append([f"`{node.name}`", f"`{base}`", f"`{module}`", linked(first)])
    return sorted(rows)


def _declared() -> Iterator[tuple[str, ast.ClassDef]]:
    for path in sorted(SOURCE.rglob("*.py")):
        if path != SOURCE / "errors.py":
            module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    yield module, node


# Commands.


def cli_page() -> str:
    """Every command with its options."""
    root = typer.main.get_command(commands)
    assert isinstance(root, Group)
    return f"""# Commands

{NOTE.format("src/tidegate/cli")}

Every command has `--help`. Exit codes: 0 success, 1 failure, 2 a wrong request; a command that compares says what its 1 means.

{"".join(_commands(root, "tidegate"))}"""


def _commands(command: Command, path: str) -> Iterator[str]:
    yield f"## {path}\n\n{command.help or ''}\n\n"
    rows = [_parameter(one) for one in command.params if not getattr(one, "hidden", False)]
    yield table(["option", "value", "default", "meaning"], rows) + "\n" if rows else ""
    if isinstance(command, Group):
        for name, below in command.commands.items():
            yield from _commands(below, f"{path} {name}")


def _parameter(parameter: Any) -> list[str]:
    is_option = parameter.param_type_name == "option"
    names = [*parameter.opts, *parameter.secondary_opts] if is_option else [parameter.name.upper()]
    text = parameter.help if is_option else parameter.get_help_record(Context(Command("none")))[1]
    text = re.sub(r"\s*\[(required|default: [^\]]*)\]$", "", text or "")
    if parameter.envvar:
        text += f" Environment: `{parameter.envvar}`."
    if not text:
        raise ValueError(f"{names[0]} has no help")
    return [", ".join(f"`{name}`" for name in names), _value(parameter), _given(parameter), linked(text)]


def _value(parameter: Any) -> str:
    if getattr(parameter, "is_flag", False):
        return NONE
    kind = parameter.type
    words = {"text": "text", "integer": "integer", "float": "number", "path": "path"}
    shown = words.get(kind.name.removesuffix(" range"), str(kind.name))
    low, high = getattr(kind, "min", None), getattr(kind, "max", None)
    if low is not None or high is not None:
        shown += f", {low} to {high}" if high is not None else f", at least {low}"
    return shown + (", repeatable" if parameter.multiple or parameter.nargs == -1 else "")


def _given(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if value in (None, "", False) or value == () or not isinstance(value, (bool, int, float, str)):
        return NONE
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


# Layouts of kernels.


def layouts() -> Iterator[tuple[str, ModuleType, list[tuple[str, Layout]]]]:
    """Each module that declares layouts, by its path under src/tidegate, with their names in it."""
    for file in sorted(SOURCE.rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        names = re.findall(r"^(\w+): Final = Layout\(", source, re.MULTILINE)
        if names:
            place = file.relative_to(SOURCE)
            module = import_module(".".join(("tidegate", *place.with_suffix("").parts)))
            yield str(place), module, [(name, getattr(module, name)) for name in names]


def layouts_page() -> str:
    """docs/internals/layouts.md."""
    parts = [
        "# Layouts\n\n" + NOTE.format("the layouts that modules of kernels declare") + "\n\n"
        "Compiled kernels and Python share memory: tables of records, and records of what a kernel works on. Each layout is "
        "declared once, as a `Layout` in the module that owns it, and gives the constants below. All fields are "
        "little-endian and follow each other without gaps. A `u64` or `i64` is 8 bytes, an `address` too; a `u32` is 4, and a `run` is an address and a size.\n"
    ]
    for place, _, found in layouts():
        parts.append(f"\n## {place}\n")
        for name, layout in found:
            rows = [
                [f"`{layout.constant(field)}`", str(at), kind.type, kind.unit or NONE, kind.about]
                for (field, kind), at in zip(layout.fields.items(), layout.offsets(), strict=True)
                if kind.about != "unused"
            ]
            parts.append(f"\n### {name}: {layout.name}, {layout.size} bytes\n\n{layout.about}\n\n")
            parts.append(table(["Constant", "Offset", "Type", "Unit", "Meaning"], rows))
    return "".join(parts)


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "reference/settings.md": settings_page,
    "reference/http-api.md": api_page,
    "reference/metrics.md": metrics_page_text,
    "reference/errors.md": errors_page,
    "reference/cli.md": cli_page,
    "internals/layouts.md": layouts_page,
}


def page(name: str) -> str:
    """The generated text of a page, which ends in one line feed."""
    return PAGES[name]().rstrip("\n") + "\n"


def out_of_date() -> list[str]:
    """The names of pages that differ from the code or do not exist."""
    return [
        name for name in PAGES if not (FOLDER / name).is_file() or (FOLDER / name).read_text() != page(name)
    ]


def main() -> int:
    """Write the pages, or compare them."""
    if "--check" in sys.argv[1:]:
        stale = out_of_date()
        for name in stale:
            print(f"docs/{name} is out of date: run make docs")
        return 1 if stale else 0
    for name in PAGES:
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(page(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
