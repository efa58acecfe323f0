"""Writes pages of docs/formats about protocols from the code: a comparison of all, and those of simple and ticdc-mq."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any, Final

from tools.format_blocks import document_of

from tidegate.codec.entry import AnyCodec, DdlTo, KeyCodec, Loss, ReadCodec, RowCodec
from tidegate.codec.protocols.simple.message import SimpleOptions
from tidegate.codec.protocols.simple.plain_write import SimpleEncoder
from tidegate.codec.protocols.ticdc_mq.plain import MqOptions, TicdcMqEncoder, admin
from tidegate.codec.protocols.ticdc_mq.types import TYPES
from tidegate.codec.readback import LOSSY_KINDS
from tidegate.codec.registry import CODECS, codec_options
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message
from tidegate.model.row import RowChange
from tidegate.tidb.table_info import table_schema

NOTE: Final = (
    "<!-- Written by tools/format_pages.py from the protocols' entries: change that, not this page. -->"
)
ABSENT: Final = "-"


def protocols_page() -> str:
    """The comparison of all protocols."""
    codecs = list(CODECS.values())
    rows = [codec for codec in codecs if isinstance(codec, ReadCodec)]
    losses = [[f"`{codec.name}`", *(_lost(codec, loss) for loss in Loss)] for codec in rows]
    legend = "\n".join(f"{number}. {loss}" for number, loss in enumerate(Loss, 1))
    flavoured = ", ".join(
        codec.name for codec in rows if isinstance(codec, RowCodec) and "new" in codec.flavours
    )
    return f"""# Protocols

{NOTE}

`protocol=` in the sink URI, or `[sink] protocol`, selects the format of messages.

{_table(["protocol", "other names", "rows or keys", "DDL goes to", "Resolved", "own options"], map(_row, codecs))}
## Flavours

TiCDC's two architectures write slightly different bytes. Both are read. Tidegate writes those of the classic one, or
with `[tidegate] flavour = "new"` those of the new one, in {flavoured}; for simple in both of its encodings. Two defects of the new
one are not copied: with `only-output-updated-columns` a column of open-protocol that became NULL loses its name, and
debezium's schema lists virtual columns twice.

## What a message does not carry

Decoding an encoded message gives the same rows, values, order and timestamps, except for this list. The test of every protocol
(`tests/contracts/test_codecs.py`) compares with exactly this table: anything else that differs fails it.

{legend}

{_table(["protocol", *map(str, range(1, len(Loss) + 1))], losses)}
`always`; or the option that brings it, or that avoids it (`without`); `{ABSENT}` never.

## JSON text

TiCDC writes JSON with several Go libraries, which escape different characters. Each protocol here writes the bytes of its library:

{_table(["library", "used for", "`< > &`", "U+2028, U+2029", "control characters", "bytes that are not UTF-8"], _JSON_WRITERS)}
A float of encoding/json has the shortest digits that read back to the same number, and an exponent below 1e-6 and from 1e21 on.
Members of a Go map are sorted by the bytes of their names.

## What verify-encoded leaves out

Under [`verify-encoded`](../integrity.md#what-is-sent-is-what-was-captured) columns of these types are not compared, because their
decoded values may differ:

{_table(["protocol", "columns"], ([f"`{codec.name}`", _left_out(codec)] for codec in rows if isinstance(codec, RowCodec)))}"""


_JSON_WRITERS: Final = [
    [
        "encoding/json", "open-protocol, simple, maxwell, schemas of avro", "`\\u003c` ...", "escaped",
        "`\\b \\f \\n \\r \\t`, else `\\u00XX`", "U+FFFD, escaped",
    ],
    [
        "easyjson, goccy/go-json", "canal-json", "`\\u003c` ...", "escaped", "`\\n \\r \\t`, else `\\u00XX`",
        "U+FFFD, escaped",
    ],
    [
        "json-iterator without EscapeHTML", "debezium, open-protocol of the new architecture", "as they are",
        "as they are", "`\\n \\r \\t`, else `\\u00XX`", "as they are",
    ],
]  # fmt: skip


def _left_out(codec: RowCodec[Any]) -> str:
    """The kinds of columns that are not compared because of a protocol's losses, with its marks."""
    given = (
        dict(one.split("=") for one in codec.unmarked.option.split("&")) if codec.unmarked is not None else {}
    )
    options = codec_options({"protocol": codec.name, **given})
    losses = codec.losses(options)
    kinds = sorted({kind.name.lower() for loss in losses for kind in LOSSY_KINDS.get(loss, ())})
    kinds += ["those with a default that are NULL-able"] if Loss.DEFAULT in losses else []
    return ", ".join(kinds) or "none"


def _row(codec: AnyCodec) -> list[str]:
    marks = "always"
    if codec.unmarked is not None:
        marks = f"with `{codec.unmarked.option}`" if codec.unmarked.option else "never"
    common = {field.name for field in fields(MqOptions)}
    given = [f for f in fields(codec.options) if not f.metadata.get("placed")]
    own = [
        f"`{f.name.replace('_', '-')}`" + (" (flavour new)" if "flavour" in f.metadata else "")
        for f in given
        if f.name not in common
    ]
    aliases = [f"`{name}`" if name else "none given" for name in codec.aliases]
    what = (
        "keys"
        if isinstance(codec, KeyCodec)
        else "rows"
        if isinstance(codec, RowCodec)
        else "rows, read only"
    )
    ddl = ABSENT if codec.ddl_to is DdlTo.NONE else codec.ddl_to.value
    return [f"`{codec.name}`", ", ".join(aliases), what, ddl, marks, ", ".join(own) or ABSENT]


def _lost(codec: ReadCodec[Any], loss: Loss) -> str:
    """When a protocol loses something: always, or by which switch."""
    usual = codec.options()
    has_new = isinstance(codec, RowCodec) and "new" in codec.flavours
    if has_new and codec.losses(replace(usual, flavour="new")) - codec.losses(usual) >= {loss}:
        return '`flavour = "new"`'
    switches = [f.name for f in fields(codec.options) if isinstance(f.default, bool)]
    turned: dict[str, Any] = {}
    for name in switches:
        change: dict[str, Any] = {name: not getattr(usual, name)}
        turned[name] = replace(usual, **change)
    held = loss in codec.losses(usual)
    other = [name for name, options in turned.items() if (loss in codec.losses(options)) != held]
    if not other:
        # Some losses depend on two switches.
        changes: dict[str, Any] = {name: not getattr(usual, name) for name in switches}
        every = replace(usual, **changes)
        if (loss in codec.losses(every)) != held:
            both = " and ".join(
                f"`{name.replace('_', '-')}={str(getattr(every, name)).lower()}`" for name in switches
            )
            return f"without {both}" if held else both
        return "always" if held else ABSENT
    shown = ", ".join(
        f"`{name.replace('_', '-')}={str(getattr(turned[name], name)).lower()}`" for name in other
    )
    return f"without {shown}" if held else shown


def simple_page() -> str:
    """Simple."""
    columns = [("id", 3, 3, "binary"), ("at", 7, 0, "binary"), ("data", 252, 128, "binary")]
    cols = [
        {"id": i + 1, "name": {"O": name}, "offset": i, "state": 5,
         "type": {"Tp": code, "Flag": flag, "Flen": 11, "Decimal": 0, "Charset": charset, "Collate": charset}}
        for i, (name, code, flag, charset) in enumerate(columns)
    ]  # fmt: skip
    info = {"id": 7, "name": {"O": "t"}, "pk_is_handle": True, "cols": cols, "update_timestamp": 8}
    table = table_schema("d", info, 9)
    old, new = (1, "2024-01-01 00:00:00", b"ab"), (1, "2024-01-01 00:00:00", None)
    encoder = SimpleEncoder(SimpleOptions())
    (row,) = encoder.encode_rows([RowChange(table, 11, 10, 7, 1, old, new)], 12)
    ddl = DdlEvent(1, 0, 0, 9, 3, "create table t (...)", "d", "t", "d", "t", 1, None, info, (7,), ())
    return f"""# Simple

{NOTE}

TiCDC's own protocol `simple` in JSON or Avro, byte for byte as its classic encoder writes it (`pkg/sink/codec/simple` in
pingcap/tiflow): a row has values and names a version of its table, and other messages have that version's columns. One
Kafka message a row, without a key. Row by row: `codec/protocols/simple/plain.py`.

## A row

{_shown(row)}
`data` has the new values, `old` the old ones; their members are in the order of the names' bytes. `tableID` is that of the
partition in a partitioned table. `schemaVersion` is the `update_timestamp` of the TableInfo, `buildTs` the encoder's clock in ms.

| value | JSON |
|---|---|
| timestamp | its text with its zone |
| bytes | string, Base64 |
| NULL | null |
| all others: integers, floats, bit, enum (its number), set (its mask), text, decimal, date, time, datetime, JSON, vector | string |

## A table's definition

{_shown(encoder.encode_definition(table, 12))}
All columns are there in the order of their ids, also virtual and hidden ones. If a table has no primary key, its first unique
index without NULL is shown as one, as TiCDC does. DDL messages contain definitions as well.

A changefeed sends this message ahead of each block of rows, to each partition the block has rows for, in the same transaction.
So it does not need TiCDC's `send-bootstrap-*` options: they are accepted and have no effect, except for
`send-all-bootstrap-at-start`, which is refused. A consumer that starts or resumes behind a definition looks back for it
in the partition, if necessary to the oldest message. A row whose definition is not there is set aside with that reason.

## DDL

To every partition, with the definitions after and before it if there are any. The whole DDL is in the Kafka header
`tidegate-ddl` ([DDL](ddl.md)):

{_shown(encoder.encode_ddl(ddl, 12))}
## Watermark

To every partition:

{_shown(encoder.encode_resolved(11, 12))}
## In Avro

`encoding-format=avro` writes the same messages in Avro binary, with the schema that is compiled into TiCDC (`message.json`). There
is no header and no registry. A value is a union of twelve types and always the last of them, so its first byte is `16`. The message's
type and the branch of its payload follow, both 0 watermark, 1 BOOTSTRAP, 2 DDL, 3 row (`16 06 06`: a row). Readers recognize
the encoding by the first byte, whatever their options say.

`data` and `old` are maps of names to a union: 0 NULL, 1 long (integers, year, bit, enum, set), 2 float, 3 double, 4 string (text
and all that is text above), 5 bytes, 6 a timestamp's zone and text, 7 unsigned bigint (wraps above 2^63 - 1). TiCDC writes the
entries in any order, because they are Go's maps; ours are in the order of the names' bytes. Except for that order the bytes are
TiCDC's. Definitions, DDL and watermarks are the same bytes. Row by row: `codec/protocols/simple/avro_write.py`,
`codec/protocols/simple/avro.py`; compiled: `codec/kernels/avro_kernels.py`, `codec/kernels/simple_decode_kernels.py`.

## What is read, and what is not written

| TiCDC writes | read | written |
|---|---|---|
| JSON | yes | yes |
| Avro (`encoding-format=avro`), recognized by its first byte; a BIT is a long, in the flavour `new` its digits as a string | yes | yes; the members of `data` and `old`, which TiCDC writes in any order, in the order of the names' bytes |
| `checksum` of `integrity-check-level` | a row marked `corrupted`, or whose values give other sums, is set aside with its table, key and commit ts; 0 is no sum. TiCDC's new architecture sums in the table's order of columns instead of that of their ids: its rows of tables with moved columns are set aside | yes, of a row that carries one. The halves of a split update have a sum each, where classic writes 0 twice |
| `handleKeyOnly` | yes, from TiKV with `--pd`; otherwise reported as a row that is not on the topic | [yes](large-messages.md), in JSON |
| `claimCheckLocation` | yes, when the source URI names the storage | [yes](large-messages.md), in JSON |
| compressed values | yes, when the source URI names the kind | yes |
| a timestamp in another zone than the reader's `--time-zone` | set aside, with that reason | |
"""


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def mq_page() -> str:
    """Ticdc-mq."""
    columns = [("columnName1", 3, 3, "binary"), ("columnName2", 252, 0, "utf8mb4")]
    cols = [
        {"id": i + 1, "name": {"O": name}, "offset": i, "state": 5,
         "type": {"Tp": code, "Flag": flag, "Flen": 11, "Decimal": 0, "Charset": charset, "Elems": None}}
        for i, (name, code, flag, charset) in enumerate(columns)
    ]  # fmt: skip
    info = {"id": 1, "name": {"O": "table1"}, "pk_is_handle": True, "cols": cols}
    table, image = table_schema("schema1", info, 1), (7766, b"aabb")
    encoder = TicdcMqEncoder(MqOptions())
    put, gone = encoder.encode_rows(
        [RowChange(table, 1, 1, 1, 7766, None, image), RowChange(table, 1, 1, 1, 7766, image, None)]
    )
    names = ("schema1", "table1")
    ddl = DdlEvent(1, 0, 0, 1, 4, "drop table a;", *names, *names, 1, None, None, (), ())
    codes: dict[int, list[str]] = {}
    for name, (code, _, _) in TYPES.items():
        codes.setdefault(code, []).append(f"`{name}`")
    types = _table(["code", "names"], [[str(code), ", ".join(codes[code])] for code in sorted(codes)])
    return f"""# Ticdc-mq

{NOTE}

The protocol of TiCDC's first design of messages (`docs/design/2020-02-24-ticdc-mq-protocol-cn.md` in
pingcap/tiflow), with `protocol=ticdc-mq`. TiCDC itself never shipped it: it has open-protocol instead. A row is one
message in plain JSON, with exactly the members that the document shows. Row by row: `codec/protocols/ticdc_mq/plain.py`.

## A row

An insert, and an update, has all new values under `update`:

{_shown(put)}
A delete has the columns of the handle key, or all columns if the table has no key:

{_shown(gone)}
`ts` is the commit ts, `unique` is true for the columns of the handle key. An update has no old values, so an update
that changes a unique key is sent as a delete and an insert, and `output-raw-change-event` and `force-replicate` are refused.

| value | JSON |
|---|---|
| integers, year, bit, enum (its number), set (its mask), float, double | number |
| text, decimal, date, time, datetime, timestamp (in the changefeed's zone), JSON, vector | string, TiDB's text |
| bytes | string, Base64 |
| NULL | null |

## DDL

To every partition. The whole DDL, with the table's definition before and after it, is in the Kafka header
`tidegate-ddl` ([DDL](ddl.md)); the message itself has the document's members only:

{_shown(encoder.encode_ddl(ddl))}
## Resolved

To every partition, without a value: no row with a commit ts at or below it appears for the first time after it.

{_shown(encoder.encode_resolved(1))}
## Admin

From here on the changefeed spreads rows over another number of partitions ([re-partition](../repartition.md)). The message
follows a Resolved on every partition. Like every later Resolved, it has two Kafka headers that describe the whole change. The
consumer follows an Admin with these headers and stops at one without them: after such a message, rows above the last Resolved
are sent again, each to its new partition.

{_shown(admin(5))}
## Types

The document shows `Long` and `Text`. The others are MySQL's names of its type codes, with the SQL name where text and
bytes share a code:

{types}"""


def _shown(message: Message) -> str:
    key = document_of(message.key.hex()) if message.key is not None else ""
    value = document_of(message.value.hex()) if message.value is not None else "No value.\n"
    return key + value
