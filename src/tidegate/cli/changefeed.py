"""`tidegate changefeed ...`: thin calls to a capture's HTTP API, with the flags of TiCDC's CLI."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tidegate.cli import changefeed_moves, changefeed_ranges, consistency
from tidegate.cli.changefeed_load import follow, line_of
from tidegate.cli.client import DEFAULT_SERVER, JsonOption, ServerOption, call, columns, reported, show
from tidegate.errors import InvalidInput
from tidegate.log import redact

app = typer.Typer(help="Create, watch and control changefeeds.", no_args_is_help=True)

IdOption = Annotated[str, typer.Option("--changefeed-id", "-c", help="The changefeed.")]
NamespaceOption = Annotated[str, typer.Option("--namespace", "-n", help="The changefeed's namespace.")]

CHANGEFEED: Final = "changefeed"
"""The kind of a feed that is no reader."""
NO_WATERMARKS = (
    "note: {protocol} without {option} carries no watermarks, and not every commit timestamp whole; "
    "`tidegate consumer run` reads this topic only with --mode row (docs/row-mode.md)"
)


@app.callback()
def group() -> None:
    """Create, watch and control changefeeds."""


@app.command()
def create(
    sink_uri: Annotated[
        str, typer.Option(help="The sink's URI, e.g. 'kafka://127.0.0.1:9092/topic?protocol=open-protocol'.")
    ],
    server: ServerOption = DEFAULT_SERVER,
    changefeed_id: Annotated[
        str, typer.Option("--changefeed-id", "-c", help="The changefeed's name; default: a generated one.")
    ] = "",
    config: Annotated[
        Path | None, typer.Option(help="The changefeed's settings: a TOML file, in the form of TiCDC's.")
    ] = None,
    start_ts: Annotated[int, typer.Option(min=0, help="Replicate commits above this ts; 0: now.")] = 0,
    target_ts: Annotated[int, typer.Option(min=0, help="Stop after this ts; 0: never.")] = 0,
    initial_load: Annotated[
        bool,
        typer.Option("--initial-load", help="Deliver first the rows or keys that exist at the start ts."),
    ] = False,
    kv_mode: Annotated[
        str, typer.Option(help="tidb: tables; txnkv, rawkv: keys without tables, see docs/key-value.md.")
    ] = "",
    start_key: Annotated[str, typer.Option(help="The start of the key range; this key is included.")] = "",
    end_key: Annotated[str, typer.Option(help="The end of the key range; this key is not included.")] = "",
    key_prefix: Annotated[str, typer.Option(help="Follow all keys that begin with this prefix.")] = "",
    key_format: Annotated[
        str, typer.Option("--format", help="The form of the keys in these options: hex, raw or escaped.")
    ] = "hex",
    keyspace: Annotated[str, typer.Option(help="The name of the keys' keyspace (API V2).")] = "",
    keyspace_id: Annotated[
        int | None, typer.Option(min=0, help="The id of that keyspace, instead of its name.")
    ] = None,
    namespace: NamespaceOption = "default",
    as_json: JsonOption = False,
) -> None:
    """Create a changefeed and start it."""
    from tidegate.codec import registry
    from tidegate.config.reading import laid_over, merge_config, read_toml
    from tidegate.config.sink_uri import parse_sink_uri
    from tidegate.model.key_text import parse_key

    with reported():
        settings = read_toml(config) if config is not None else {}
        keys = {"start_key": start_key, "end_key": end_key, "key_prefix": key_prefix}
        own: dict[str, Any] = {name: parse_key(text, key_format).hex() for name, text in keys.items() if text}
        own |= {"initial_load": True} if initial_load else {}
        own |= {"kv_mode": kv_mode} if kv_mode else {}
        own |= {"keyspace": keyspace} if keyspace else {}
        own |= {"keyspace_id": keyspace_id} if keyspace_id is not None else {}
        settings = laid_over(settings, {"tidegate": own}) if own else settings
        merged = registry.canonical(merge_config(settings, parse_sink_uri(sink_uri)))
        body: dict[str, Any] = {
            "namespace": namespace,
            "changefeed_id": changefeed_id,
            "sink_uri": sink_uri,
            "start_ts": start_ts,
            "target_ts": target_ts,
            "replica_config": merged.to_json(),
        }
        looked_at = call(server, "POST", "/verify_table", body)
        left_out = looked_at["ineligible_tables"]
        if left_out and not merged.ignore_ineligible_table:
            print("left out; force-replicate = true in the configuration sends them too:", file=sys.stderr)
            for table in left_out:
                name = f"{table['database_name']}.{table['table_name']}"
                print(f"  {name}: {table['reason']}", file=sys.stderr)
            body["replica_config"]["ignore_ineligible_table"] = True
        for weak in looked_at["tidegate"]["weak_orders"]:
            more = f" and {weak['more']:,} more" if weak["more"] else ""
            print(f"dispatcher {weak['dispatcher']}, for {', '.join(weak['tables'])}{more}:", file=sys.stderr)
            print(f"  {weak['what']}; docs/dispatchers.md", file=sys.stderr)
        if cost := looked_at["tidegate"].get("cut_tables"):
            print(f"tables of many regions get several writers: {cost}; docs/stripes.md", file=sys.stderr)
        made = call(server, "POST", "/changefeeds", body)
        unmarked = registry.codec(merged.sink.protocol).unmarked
        if unmarked is not None and not registry.has_marks(registry.options_of(merged)):
            note = NO_WATERMARKS.format(protocol=merged.sink.protocol, option=unmarked.option)
            print(note, file=sys.stderr)
        text = f"created changefeed {made['namespace']}/{made['id']}, start-ts {made['start_ts']}"
        show(made, text, as_json)
        setting = consistency.of_changefeed(merged)
        if setting is not None and not as_json:
            consistency.print_table(setting)


@app.command("list")
def show_all(
    server: ServerOption = DEFAULT_SERVER,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Only this namespace.")] = "",
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include finished changefeeds.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List changefeeds with state and checkpoint."""
    with reported():
        found = call(server, "GET", "/changefeeds", query={"namespace": namespace, "state": "all"})["items"]
        items = [f for f in found if everything or f["state"] not in ("finished", "removed")]
        show(items, table(items) if items else "no changefeeds", as_json)


@app.command()
def query(
    changefeed_id: IdOption,
    server: ServerOption = DEFAULT_SERVER,
    namespace: NamespaceOption = "default",
    ranges: Annotated[
        bool, typer.Option("--ranges", help="Show each range of keys, not only those that something keeps.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a changefeed, and what keeps it from advancing.

    If ranges of its keys are not delivered, or may not advance, a table says which and why.
    """
    with reported():
        feed = call(server, "GET", f"/changefeeds/{changefeed_id}", query={"namespace": namespace})
        own, below = feed["tidegate"], ""
        if not as_json and (found := own.get("ranges")):  # a server of an earlier version has none
            below = changefeed_ranges.reasons(found)
            if ranges and own["captures"]:
                below = f"{changefeed_ranges.every(own['captures'])}\n{below}"
        show(feed, _described(feed) + (f"\n\n{below.rstrip()}" if below else ""), as_json)


@app.command()
def load(
    changefeed_id: IdOption,
    server: ServerOption = DEFAULT_SERVER,
    namespace: NamespaceOption = "default",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Follow a changefeed's initial load until it is done."""
    path, query = f"/changefeeds/{changefeed_id}", {"namespace": namespace}
    with reported():
        follow(lambda: call(server, "GET", path, query=query), as_json=as_json)


@app.command()
def update(
    changefeed_id: IdOption,
    server: ServerOption = DEFAULT_SERVER,
    config: Annotated[
        Path | None,
        typer.Option(help="A TOML file; its settings replace the present ones, and all others stay."),
    ] = None,
    sink_uri: Annotated[str, typer.Option(help="A new sink URI; default: unchanged.")] = "",
    target_ts: Annotated[int, typer.Option(min=0, help="Stop after this ts; 0: unchanged.")] = 0,
    namespace: NamespaceOption = "default",
    no_confirm: Annotated[bool, typer.Option("--no-confirm", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Change the settings of a stopped or failed changefeed.

    Resume it to apply them. The changes are shown first, and on a terminal you are asked.
    """
    from tidegate.config.reading import laid_over, read_toml

    with reported():
        path, query = f"/changefeeds/{changefeed_id}", {"namespace": namespace}
        old = call(server, "GET", path, query=query)
        settings = laid_over(old["config"], read_toml(config)) if config is not None else old["config"]
        changes = _changes(old["config"], settings)
        changes += [f"sink-uri: {old['sink_uri']} -> {redact(sink_uri)}"] if sink_uri else []
        changes += [f"target-ts: {old['target_ts'] or 'none'} -> {target_ts}"] if target_ts else []
        if not changes:
            raise InvalidInput("nothing would change", fix="give --config, --sink-uri or --target-ts")
        print("\n".join(changes), file=sys.stderr)
        if not no_confirm and sys.stdin.isatty() and not typer.confirm("Update it so?", err=True):
            raise typer.Exit(1)
        body = {"replica_config": settings, "sink_uri": sink_uri, "target_ts": target_ts}
        made = call(server, "PUT", path, body, query)
        show(made, f"updated changefeed {made['namespace']}/{made['id']}, which is {made['state']}", as_json)


def _changes(old: dict[str, Any], new: dict[str, Any], section: str = "") -> list[str]:
    """A line for each setting that differs, named as in a file."""
    lines = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        path = f"{section}{name}".replace("_", "-")
        if isinstance(before, dict) and isinstance(after, dict):
            lines += _changes(before, after, f"{path}.")
        elif before != after:
            shown = redact(f"{path}: {json.dumps(after)}").removeprefix(f"{path}: ")
            lines.append(f"{path}: {json.dumps(before)} -> {shown}")
    return lines


@app.command()
def pause(
    changefeed_id: IdOption, server: ServerOption = DEFAULT_SERVER, namespace: NamespaceOption = "default"
) -> None:
    """Stop a changefeed; checkpoint and upstream's history stay."""
    _command(server, changefeed_id, namespace, "POST", "/pause", "paused")


@app.command()
def resume(
    changefeed_id: IdOption,
    server: ServerOption = DEFAULT_SERVER,
    namespace: NamespaceOption = "default",
    overwrite_checkpoint_ts: Annotated[
        str,
        typer.Option(
            "--overwrite-checkpoint-ts",
            help="Resume from this ts instead of the checkpoint, or from `now`. From an earlier one, all "
            "changes since then are sent again; from a later one, those in between are left out.",
        ),
    ] = "0",
) -> None:
    """Start a stopped or failed changefeed again.

    It continues at its checkpoint, unless another ts is given.
    """
    with reported():
        body = {"overwrite_checkpoint_ts": _overwrite_ts(server, overwrite_checkpoint_ts)}
        path = f"/changefeeds/{changefeed_id}/resume"
        call(server, "POST", path, body, {"namespace": namespace})
        print(f"resumed changefeed {namespace}/{changefeed_id}")


def _overwrite_ts(server: str, text: str) -> int:
    if text == "now":
        now = call(server, "POST", "/tso", {})
        return int(now["timestamp"]) << 18 | int(now["logic_time"])
    if not text.isdecimal():
        raise InvalidInput(f"'{text}' is not a ts", fix="give --overwrite-checkpoint-ts a number, or now")
    return int(text)


@app.command()
def repartition(
    changefeed_id: IdOption,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", min=1, help="The number of partitions over which rows are spread from now on."
        ),
    ],
    server: ServerOption = DEFAULT_SERVER,
    namespace: NamespaceOption = "default",
    as_json: JsonOption = False,
) -> None:
    """Spread rows over another number of partitions of a topic.

    The changefeed keeps running; docs/repartition.md says what readers must do.
    """
    with reported():
        path, query = f"/changefeeds/{changefeed_id}/repartition", {"namespace": namespace}
        feed = call(server, "POST", path, {"partitions": partitions}, query)
        name, own = f"{feed['namespace']}/{feed['id']}", feed["tidegate"]
        if own["repartition"]:
            text = (
                f"changefeed {name} goes over to {partitions} partitions as soon as all rows before are out"
            )
        else:
            text = f"changefeed {name} has {partitions} partitions"
        show(feed, text, as_json)


@app.command()
def rebalance(
    changefeed_id: IdOption,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would move.")] = False,
    server: ServerOption = DEFAULT_SERVER,
    namespace: NamespaceOption = "default",
    as_json: JsonOption = False,
) -> None:
    """Divide a changefeed's tables evenly among the captures.

    The measure is the changes that come for each table. Captures do it by themselves when one comes or goes,
    or when loads are very uneven. It stops the checkpoint for about a second. With --dry-run it prints what
    would move, the cost and the gain.
    """
    with reported():
        path, query = f"/changefeeds/{changefeed_id}/rebalance", {"namespace": namespace}
        found = call(server, "POST", path, {"dry_run": dry_run}, query)
        show(found, changefeed_moves.described(found), as_json)


@app.command()
def move(
    tables: Annotated[list[str], typer.Argument(help="SCHEMA.TABLE, or the id of a table or partition.")],
    changefeed_id: IdOption,
    to: Annotated[str, typer.Option("--to", help="The capture, as `tidegate capture list` shows it.")],
    server: ServerOption = DEFAULT_SERVER,
    namespace: NamespaceOption = "default",
    as_json: JsonOption = False,
) -> None:
    """Let a capture deliver some tables of a changefeed.

    They stay there until captures come or go, another owner is elected, or you rebalance the changefeed.
    Tables with neighbouring ids may share a span; they move together. A table that is cut into pieces moves
    with all of them.
    """
    with reported():
        path, query = f"/changefeeds/{changefeed_id}/move", {"namespace": namespace}
        found = call(server, "POST", path, {"tables": tables, "capture": to}, query)
        nothing = "nothing to move: the capture has these tables"
        show(found, changefeed_moves.described(found, nothing), as_json)


@app.command()
def remove(
    changefeed_id: IdOption, server: ServerOption = DEFAULT_SERVER, namespace: NamespaceOption = "default"
) -> None:
    """Remove a changefeed and its stored state."""
    _command(server, changefeed_id, namespace, "DELETE", "", "removed")


def _command(server: str, name: str, namespace: str, method: str, what: str, done: str) -> None:
    with reported():
        call(server, method, f"/changefeeds/{name}{what}", query={"namespace": namespace})
        print(f"{done} changefeed {namespace}/{name}")


def table(feeds: list[dict[str, Any]]) -> str:
    """One line for each feed, with aligned columns; their kind only if there are readers."""
    rows = [("CHANGEFEED", "KIND", "STATE", "CHECKPOINT", "LAG", "ERROR")]
    for feed in feeds:
        own = feed.get("tidegate", {})  # missing in answers of TiCDC's servers
        name, kind = f"{feed['namespace']}/{feed['id']}", own.get("kind", CHANGEFEED)
        lag = own.get("checkpoint_lag_ms")
        place = str(feed["checkpoint_tso"]), "-" if lag is None else _lag(feed, lag)
        rows.append((name, kind, feed["state"], *place, _cause(feed)))
    if {row[1] for row in rows[1:]} == {CHANGEFEED}:
        return columns([row[:1] + row[2:] for row in rows])
    return columns(rows)


def _lag(feed: dict[str, Any], lag_ms: int) -> str:
    """How far a feed's checkpoint is behind; it says nothing of one that has finished."""
    return "-" if feed["state"] == "finished" else changefeed_ranges.age(lag_ms)


def _cause(feed: dict[str, Any]) -> str:
    """The first line of a feed's error, if it has one."""
    error = feed.get("error")
    return str(error["message"]).splitlines()[0] if error else ""


def _delivered(own: dict[str, Any]) -> str:
    sent = f"{own['rows']:,} rows, {own['messages']:,} messages, {changefeed_moves.size(own['bytes'])}"
    return f"{sent}, {own['ddl_events']:,} DDLs"


def _described(feed: dict[str, Any]) -> str:
    own = feed["tidegate"]
    lag = own.get("checkpoint_lag_ms")  # a server of an earlier version does not say it
    rows = {
        "changefeed": f"{feed['namespace']}/{feed['id']}",
        "state": feed["state"],
        "checkpoint": f"{feed['checkpoint_ts']}  ({feed['checkpoint_time']} UTC)",
        "lag": _lag(feed, lag) if lag is not None else "-",
        "resolved": feed["resolved_ts"],
        "sink": feed["sink_uri"],
        "start-ts": feed["start_ts"],
        "target-ts": feed["target_ts"] or "none",
        "delivered": _delivered(own),
        "spans": len(own["spans"]),
        "waiting for": own["waiting_for"] or "-",
    }
    if len(lines := changefeed_ranges.captures(own.get("captures", []))) > 1:
        rows["captures"] = "\n             ".join(lines)
    if ranges := own.get("ranges"):
        rows["ranges"] = changefeed_ranges.summary(ranges)
    if cuts := own.get("table_cuts"):
        rows["in pieces"] = changefeed_ranges.cut_tables(cuts, own.get("cut_tables"), own.get("cuts_chosen"))
    if hot := changefeed_moves.hot_spans(own.get("hot_spans")):
        rows["too hot"] = "\n             ".join(hot)
    if limits := own.get("gives_up"):
        rows["gives up"] = "\n             ".join(limits)
    if own.get("partitions"):
        wanted = f", to be {own['repartition']}" if own["repartition"] else ""
        rows["partitions"] = f"{own['partitions']}{wanted}"
    if reader := own.get("reader"):
        del rows["sink"], rows["delivered"], rows["target-ts"]
        mib = f"{reader['kept_bytes'] / (1 << 20):.1f} of {reader['max_kept'] / (1 << 20):.0f} MiB"
        rows |= {
            "tables": ", ".join(reader["tables"]),
            "rows": f"{reader['rows']}, {own['rows']} so far",
            "kept": f"{mib}, readable up to {reader['readable_ts']}",
            "query": f"last request {reader['queried_at']}, kept for {reader['hold_s']} s without another",
        }
    if own["initial_load"]:
        rows["initial load"] = line_of(own["initial_load"])
    if own["ineligible"]:
        named = [f"{table['table']}: {table['reason']}" for table in own["ineligible_tables"]]
        more = own["ineligible"] - len(named)
        rows["left out"] = "\n             ".join([*named, *([f"and {more} more"] if more else [])])
    if feed["error"]:
        rows["error"] = "\n             ".join(feed["error"]["message"].splitlines())
    return "\n".join(f"{name:<12} {value}" for name, value in rows.items())
