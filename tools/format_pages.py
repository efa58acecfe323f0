"""Writes docs/formats/*.md: each format of TiDB and TiCDC with recorded bytes, explained byte by byte.

python -m tools.format_pages    writes the pages; a test fails if they are out of date

Every block of bytes is a whole vector of tests/golden: `taken_apart` refuses pieces that are not all of it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Final
from zlib import crc32

import orjson
from tools.format_blocks import (
    ROOT,
    Cursor,
    document_of,
    framed,
    groups,
    last_cell,
    lines,
    message,
    recorded,
    row_v2,
    table_of_key,
    taken_apart,
    text_of,
    varint_size,
    vector,
)
from tools.protocol_pages import mq_page, protocols_page, simple_page

from tidegate.tidb import memcomparable
from tidegate.tidb.types import decimal, temporal
from tidegate.tidb.types import json as binary_json

FOLDER: Final = ROOT / "docs" / "formats"
NOTE: Final = "<!-- Written by tools/format_pages.py from recorded vectors: change that, not this page. -->"


def keys_page() -> str:
    """Keys."""
    number = vector("primitives", kind="int", v="1")
    text = next(v for v in lines("keys/primitives") if v["kind"] == "bytes" and len(v["hex"]) == 18)
    handle = next(v for v in lines("keys/table_keys") if v["kind"] == "int_handle")
    record = table_of_key(handle["key"])
    record.take(2, "'_r'")
    record.take(8, f"handle {handle['handle']}, comparable")
    boundary = Cursor(handle["region_key"])
    while boundary.at < len(boundary.data):
        boundary.take(8, "eight bytes of the key, the last padded with zeros")
        boundary.take(
            1, lambda p: "ff: more follows" if p == b"\xff" else f"{p.hex()}: {255 - p[0]} bytes of padding"
        )
    common = recorded("key_common_three", 1)
    three = table_of_key(common["key"])
    three.take(2, "'_r'")
    three.take(9, "flag 4, the datetime as a packed u64")
    three.take(3, lambda p: f"flag 6, precision {p[1]}, fraction {p[2]}")
    three.take(6, "the decimal")
    three.rest("flag 1, the bytes in groups of eight")
    index = next(
        one for one in lines("rows/key_nonclustered") if one["kind"] == "kv" and one["is"] == "index"
    )
    entry = table_of_key(index["key"])
    entry.take(2, "'_i'")
    entry.take(8, lambda p: f"index id {memcomparable.decode_int(p)}, comparable")
    entry.take(1, "flag 0: NULL, so the handle follows to distinguish entries")
    entry.rest("flag 3, the handle")
    unique = next(
        one for one in lines("rows/key_common_general_ci")
        if one["kind"] == "kv" and one["is"] == "index" and (one["value"] or "").startswith("007d017f")
    )  # fmt: skip
    named = Cursor(unique["value"])
    named.take(1, "no tail")
    named.take(2, "7d: a version, 1: of a clustered table")
    named.take(3, lambda p: f"7f: the handle follows, {int.from_bytes(p[1:], 'big')} bytes")
    named.take(int.from_bytes(named.data[4:6], "big"), "the handle as in the row's key")
    named.rest("a row of format v2 with the texts that the sort keys have lost")
    meta = vector("table_keys", kind="meta_hash_key", name="DBs")
    cursor = Cursor(meta["key"])
    cursor.take(1, "'m'")
    cursor.take(9, "'DBs', comparable")
    cursor.take(8, "'h': a field of a hash")
    cursor.rest(f"'{meta['field']}', comparable")
    return f"""# Keys

{NOTE}

Keys are sorted as bytes, so the bytes of numbers and texts must sort as the numbers and texts do. Plain form:
`tidb/memcomparable.py`, `tidb/keys.py`, `tidb/datum.py`; compiled: `tidb/kernels/record_key.py`.

## Comparable integers and bytes

A signed integer is big-endian with its sign bit flipped; an unsigned one is big-endian. {number["v"]}:

{taken_apart(number["comparable"], [(bytes.fromhex(number["comparable"]), "i64 " + number["v"])])}
Bytes are written in groups of eight. One byte follows each group: 255 minus the number of zeros that pad the group. The last
group is never full, so no text is a prefix of another's end. `{text["hex"]}`:

{groups(text["comparable"])}
## Rows

Under an integer primary key (clustered), or the hidden row id of a table without a clustered key:

{record.block()}
Under any other clustered primary key the handle is its columns, each a *datum*: a flag, then the comparable form.
Here `(datetime(3), decimal(12,4), varbinary(9))` = `{", ".join(text_of(v) for v in common["mounted"]["values"][:3])}`:

{three.block()}
| flag | value | comparable form |
|---|---|---|
| 0 | NULL | nothing |
| 1 | text, bytes | groups of eight; a text first becomes the sort key of its collation |
| 3, 4 | signed, unsigned; dates and times (packed), enum, set, bit are 4 | 8 bytes |
| 5 | float, double | 8 bytes: all bits of a negative number inverted; otherwise the sign bit set |
| 6 | decimal | precision, fraction, digits: see [values](values.md) |
| 7 | time of day | signed nanoseconds |

A text under a collation that is not binary cannot be read back from its sort key, so the row's value has it as well.
Keys can be made under every collation of TiDB except gb18030_chinese_ci, because no public standard has its order of Chinese
characters. Such keys can be read; to write one is refused with table and column.

## Index entries

Index entries are never replicated, but they are part of a transaction. Plain form: `tidb/index.py`.

{entry.block()}
An entry of a unique index without NULL has the handle in its value instead of its key:

{named.block()}
| table | not unique, or a NULL | unique |
|---|---|---|
| integer handle or row id | `30` | the handle, 8 bytes, as a plain number |
| the same, a sort key has lost something | tail length, restored row, zeros up to 10 bytes in all | tail length 8, restored row, the handle |
| clustered by columns | `00 7d 01` and the restored row, if any | `00 7d 01 7f`, length, handle, and the restored row, if any |

The restored row of the second line has every column of the index. That of the third line has only what the sort keys of the index
and of the primary key have lost, and under a `_bin` collation only the number of spaces at the end.

## Schema

TiDB keeps its own metadata under `m`; a capture reads it when a changefeed starts. `{meta["name"]}`, `{meta["field"]}`:

{cursor.block()}
## Borders of regions

PD, and TiKV's requests for regions, have keys encoded in groups of eight once more. The key of the row above:

{boundary.block()}"""


def rows_page() -> str:
    """Row formats."""
    small = recorded("key_nonclustered", 7)
    large = next(v for v in lines("keys/row_values") if v["v2"].startswith("8001"))
    cells = {c["column_id"]: f"{c['t']} {c.get('v', c.get('hex', ''))}" for c in large["columns"]}
    summed = recorded("checksum_times", 0)
    times = dict(enumerate(summed["mounted"]["values"], start=1))
    old = recorded("rowv1_ints_signed", 0)
    v1 = Cursor(old["value"])
    for value in old["mounted"]["values"][1:]:
        v1.take(1, "flag 8: a varint")
        v1.take(varint_size(v1), lambda p: f"column id {memcomparable.read_varint(p, 0)[0]}")
        v1.take(1, "flag 8: a varint")
        v1.take(varint_size(v1), value)
    return f"""# Rows

{NOTE}

The value of a record key has the columns that are not in the key, by column id. Plain form: `tidb/row.py`;
compiled: `tidb/kernels/row.py`, `mounter/decode.py`. See [values](values.md) for the meaning of a cell's bytes.

## Format v2

```
80  flags  not-null count u16  null count u16  not-null ids  null ids  ends  values  [checksum]     little-endian
```

A column that is in neither list is not stored: if it was added later it has its *origin default*, if it is part of the key it is
there, and a NULL need not be stored if the default is NULL. `(k, v, w)` = `{", ".join(text_of(v) for v in small["mounted"]["values"])}`:

{row_v2(small["value"], {1: "'b'", 2: "2"})}
A row is *large* if an id is above 255 or its values take more than 65,535 bytes. Then ids and ends are u32.

{row_v2(large["v2"], cells)}
With a checksum behind the values ([checksums](checksums.md)):

{row_v2(summed["value"], {i: f"time {v}" for i, v in times.items()})}
## Format v1

A row is pairs of datums: a column's id and its value. Integers are varints (zigzag), and texts have a varint length. A row
without columns is one zero byte. TiDB writes its own tables in this format (such as `mysql.tidb_ddl_job`), and every table if
`tidb_row_format_version = 1`:

{v1.block()}
Classic TiCDC reads a vector in such a row as `[]` (tiflow `cdc/entry/mounter.go`). Its new architecture decodes it, and so do we.
"""


def values_page() -> str:
    """Values by type."""
    exact = next(v for v in lines("keys/decimals") if v["parsed"] == "-666.03" and v["codec"])
    digits = Cursor(exact["codec"])
    digits.take(1, lambda p: f"precision {p[0]}")
    digits.take(1, lambda p: f"digits behind the point: {p[0]}")
    digits.rest("words of 9 digits in 4 bytes, cut ones shorter; inverted, then the first bit flipped")
    assert decimal.decode(bytes.fromhex(exact["codec"])) == exact["from_bin"]
    moment = next(
        v for v in lines("keys/times") if v["kind"] == "datetime" and v["string"].startswith("5359")
    )
    packed = bytes.fromhex(moment["codec_UTC"])
    parts = temporal.unpack(int.from_bytes(packed, "big"))
    floats = recorded("types_floats", 0)
    document = next(v for v in lines("keys/json") if v["text"].startswith("{") and 30 < len(v["binary"]) < 90)
    code, body = document["type_code"], bytes.fromhex(document["binary"])
    tree = Cursor(bytes([code]) + body)
    tree.take(1, "type: object")
    count = int.from_bytes(tree.take(4, lambda p: f"members: {int.from_bytes(p, 'little')}"), "little")
    tree.take(4, lambda p: f"size: {int.from_bytes(p, 'little')}")
    for i in range(count):
        tree.take(6, f"key {i + 1}: offset u32, length u16")
    for i in range(count):
        tree.take(5, f"value {i + 1}: type, then offset or the literal")
    tree.rest("keys, then values")
    assert binary_json.decode(tree.data) == document["string"]
    embedding = next(v for v in lines("keys/vectors") if 8 < len(v["binary"]) <= 40)
    points = Cursor(embedding["binary"])
    dimensions = int.from_bytes(
        points.take(4, lambda p: f"dimensions: {int.from_bytes(p, 'little')}"), "little"
    )
    for _ in range(dimensions):
        points.take(4, lambda p: f"f32 {struct.unpack('<f', p)[0]:.7g}")
    sets = recorded("types_enums_sets", 0)
    return f"""# Values

{NOTE}

The cells of a row in format v2, by the column's type. Each type has a file under `tidb/types/`. Integers and times take the least
of 1, 2, 4, 8 bytes that is enough for them.

| type | bytes |
|---|---|
| tinyint ... bigint, year | little-endian, signed; unsigned columns unsigned |
| float, double | 8 bytes, comparable big-endian (a float as a double) |
| decimal | precision, fraction, binary digits |
| char, varchar, text | UTF-8, whatever the column's character set |
| binary, varbinary, blob | as they are |
| date, datetime, timestamp | packed u64, little-endian, shortened; a timestamp in UTC |
| time | nanoseconds, signed, little-endian, shortened |
| enum, set, bit | the number (an enum's place from 1, a set's mask), unsigned, shortened |
| json | a type, then a tree by offsets |
| vector | a count, then f32 each |

## Decimal

`{exact["from_bin"]}` in a column `decimal({exact["precision"]},{exact["frac"]})`:

{digits.block()}
## Date and time

`(year * 13 + month) << 46 | day << 41 | hour << 36 | minute << 30 | second << 24 | microsecond`; zero is the zero date.
`{moment["string"]}` (year {parts.year}, month {parts.month}, microsecond {parts.micro}), as a key holds it:

{taken_apart(packed, [(packed, "u64, here big-endian")])}
## Float

`{floats["mounted"]["values"][7]}` as a double: its bits, big-endian. A positive number has the sign bit set,
and all bits of a negative one are inverted:

{last_cell(floats["value"], "comparable double")}
## JSON

`{document["string"]}`; everything is little-endian, and offsets count from after the type byte:

{tree.block()}
## Vector

`{embedding["string"]}`:

{points.block()}
## Enum, set

`{", ".join(text_of(v) for v in sets["mounted"]["values"])}`, of which the first is the key. Each cell is the number, and a set
of zero is one byte:

{row_v2(sets["value"], {})}"""


def checksums_page() -> str:
    """Row checksums."""
    two = recorded("checksum_times", 0)
    value, key = bytes.fromhex(two["value"]), bytes.fromhex(two["key"])
    covered, carried = value[:-4], int.from_bytes(value[-4:], "little")
    handle = key[11:]
    assert crc32(handle, crc32(covered)) == carried
    damaged = next(one for one in lines("rows/checksum_floats") if "damaged" in one.get("what", ""))
    assert damaged["checksum"]["corrupted"]
    return f"""# Row checksums

{NOTE}

With `tidb_enable_row_level_checksum` TiDB writes a CRC-32 (IEEE) after a row of format v2. Plain form:
`tidb/checksum.py`; compiled: `tidb/kernels/checksum.py`. [Integrity](../integrity.md) says how a changefeed uses it.

| version | the sum is over |
|---|---|
| 0 | the columns' values in the order of their ids, each in the form below |
| 1 | the row up to the checksum's header byte, that byte included, then the whole record key |
| 2 | the same, then the handle only, so that a restore under another table id keeps it valid |

In the header byte, bits 0-2 are the version, and bit 3 is set if a second sum follows. That happens in version 0 during a schema
change; one of the two sums must match.

## Version 2

The row, without its sum:

{taken_apart(covered, [(covered[:-1], "the row"), (covered[-1:], "header: version 2")])}
then the handle:

{taken_apart(handle, [(handle, "comparable 1")])}
CRC-32 of both, one after the other: {carried}. The row carries it little-endian:

{taken_apart(value[-4:], [(value[-4:], str(carried))])}
A row damaged in one byte ("{damaged["what"]}") has the same verdict from TiCDC as from us: corrupted.

## Version 0: the form of a value

| type | bytes |
|---|---|
| integers, year, enum, set, bit | u64, little-endian |
| float, double | the bits of a double, little-endian; infinities and NaN as 0 |
| date, datetime, timestamp (in UTC), time, decimal, json, text, bytes | u32 length, little-endian, then the text that TiDB would show |
| vector | as stored: u32 dimensions, then f32 each |
| NULL | nothing |

## What messages carry

Avro and simple send a checksum. It is always that of version 0, whatever version the row in TiKV has: the columns in ascending
order of their ids, so that a reader can compare it with the columns it has decoded. After a mismatch of version 1 or 2
TiCDC sends the sum that the row carried (tiflow `cdc/entry/mounter.go`), so that readers see the mismatch, too.

## What it does not cover

Rows of format v1, and rows that were written with the switch off, carry no sum. They pass and are counted as unchecked. An old
value under version 0 may be from before a column was added or dropped, so a difference there proves nothing.
"""


def open_page() -> str:
    """Open protocol."""
    one, ddl, mark = (message("open_default", kind) for kind in ("row", "ddl", "checkpoint"))
    batch = min(
        (m for one in lines("messages/open_batch16") if one["kind"] == "batch" for m in one["messages"]),
        key=lambda m: len(m["key"]),
    )
    return f"""# Open protocol

{NOTE}

TiCDC's own protocol: JSON with length prefixes, and several rows in one Kafka message. Row by row: `codec/protocols/open_protocol`;
compiled: `codec/kernels/encode_kernels.py`, `codec/kernels/decode_kernels.py`.

```
key   = version u64 (1) {{ length u64, JSON }}*      big-endian
value =                 {{ length u64, JSON }}*
```

## A row

{framed(one["key"], True)}
`ts` is the commit ts, `scm` the schema, `tbl` the table, `rid` the handle (integer keys only), and `t` the kind of message:
1 row, 2 DDL, 3 resolved.

{framed(one["value"], False)}
`u` has the new values, `p` the old ones of an update, and `d` those of a deleted row. In a column, `t` is MySQL's type, `f` the
flags, `h` is true for a key column, and `v` is the value: numbers are numbers, texts and bytes are texts (bytes that are not
printable are escaped, `\\xNN`).

| flag | | flag | |
|---|---|---|---|
| 1 | binary | 16 | unique key |
| 2 | handle key | 32 | multiple key |
| 4 | generated | 64 | nullable |
| 8 | primary key | 128 | unsigned |

[Columns](columns.md) says when each flag is set, and which type codes there are.

## Values

| type | `v` |
|---|---|
| integers, year, float, double, bit, enum (its number), set (its mask) | number; NaN and infinities are 0 |
| decimal, date, time, datetime, timestamp, json, vector | the [canonical text](columns.md#canonical-text) as a string |
| char, varchar | string |
| binary, varbinary | string: the bytes as Go's `strconv.Quote` shows them, without its quotes |
| text, blob | string, Base64 |
| NULL | null |

An update without `p` looks like an insert, and a reader cannot distinguish them.

## DDL

A DDL is sent to every partition, in a message of its own:

{framed(ddl["key"], True)}
{framed(ddl["value"], False)}
## Resolved

Everything of this partition with a commit ts at or below it has been sent:

{framed(mark["key"], True)}
{framed(mark["value"], False)}
## A batch

Keys follow one another, and so do values, up to `max-batch-size` rows and `max-message-bytes`:

{framed(batch["key"], True)}"""


def canal_page() -> str:
    """Canal-JSON."""
    one, ddl, mark = (message("canaljson_tidb_extension", kind) for kind in ("row", "ddl", "checkpoint"))
    return f"""# Canal-JSON

{NOTE}

Each row is one Kafka message without a key. Row by row: `codec/protocols/canal_json`; compiled: `codec/kernels/encode_kernels.py`,
`codec/kernels/decode_kernels.py`. `es` is the commit's time, `ts` the encoder's clock, both in ms.

## A row

{document_of(one["value"])}
`sqlType` has Java's codes (`java.sql.Types`), and `mysqlType` the column's type in words. `data` has the new values as texts: NULL is
null, and bytes are texts of latin1 characters. `old` has the old values of an update; otherwise it is `null`. A delete has its row
in `data`.

With `enable-tidb-extension=true` the commit ts is in `_tidb`, and watermarks are sent. Without it there are none, so a
consumer cannot know when a transaction is complete, and ours refuses to guess.

With `output-row-key=true` as well, in the sink URI or in `[sink.kafka-config.codec-config]`, `_tidb` ends with the row's key in TiKV
in Base64, as in `"_tidb":{{"commitTs":470613016205066241,"rowkey":"dIAAAAAAAAQjX3KAAAAAAAAAAQ=="}}`: table id and handle
([keys](keys.md)). Only TiCDC's new architecture has this option: it is refused unless `[tidegate] flavour = "new"`, and without
the extension. DDL and watermarks have no row. Our readers ignore the key.

## Values

Every value is a string, or null: its [canonical text](columns.md#canonical-text), with an enum as its number and a set as
its mask. Bytes are a string of latin1 characters, one a byte.

| type | `sqlType` | type | `sqlType` |
|---|---|---|---|
| tinyint, smallint | -6, 5 | bit, set | -7 |
| mediumint, int | 4 | enum | 4 |
| bigint | -5 | char | 1 |
| float, double | 7, 8 | varchar, year, json, vector | 12 |
| decimal | 3 | tinytext ... longtext | 2005 |
| date, time | 91, 92 | binary, varbinary, tinyblob ... longblob | 2004 |
| datetime, timestamp | 93 | | |

An unsigned value above the signed range of its type has the code of a wider type: tinyint 5, smallint 4, int -5, bigint 3.
A mediumint keeps its own. `mysqlType` is the type's name, with `unsigned` and `zerofill`; with `content-compatible=true` it also has
length and elements, as in `varchar(20)` or `enum('a','b')`.

## DDL

To partition 0 only:

{document_of(ddl["value"])}
## Watermark

{document_of(mark["value"])}"""


def maxwell_page() -> str:
    """Maxwell."""
    found = [one for one in lines("messages/maxwell") if "error" not in one]
    put, changed = (
        next(one for one in found if one["kind"] == "row" and kind in bytes.fromhex(one["value"]))
        for kind in (b'"type":"insert"', b'"type":"update"')
    )
    ddl = next(one for one in found if one["kind"] == "ddl")
    return f"""# Maxwell

{NOTE}

Zendesk's Maxwell as TiCDC's classic architecture writes it (`pkg/sink/codec/maxwell` in pingcap/tiflow). It is **read, not
written**: `tidegate peek` shows such a topic. `tidegate consumer` refuses it in every mode, because there are no watermarks and no row
could ever be applied. `tidegate topic check` refuses it because the time of a commit is known to the second only.
`changefeed create` refuses `protocol=maxwell` with the reason. Row by row: `codec/protocols/maxwell`. There is no compiled form:
it reads 35,000 narrow rows per CPU-second, or 2,000 wide ones whose NULLs are in other columns each time. Other protocols are read
at millions.

## Rows

The key is the version of the batch, `{put["key"]}`. The value has one JSON object for each row, one after the other without anything in
between: TiCDC puts all rows of a flush into one message.

{document_of(put["value"])}
An update's `old` has the values that changed; the others are as in `data`. Without `old` nothing changed. A delete has its row
in `old` and no `data`. `ts` is the commit's time in seconds. Maxwell's own `xid`, `xoffset`, `position` and `gtid` are ignored.

{document_of(changed["value"])}
If one row of a message is not complete, the message is set aside with all its rows.

## Types

A row has no types. The type of a column follows from its values in both images of that one row, so it may differ from row to row:

| in JSON | read as | what it may have been |
|---|---|---|
| a whole number | int64; uint64 from 2^63 on; float64 if another has a fraction | integers, year, bit, enum and set (their numbers), a float that is whole |
| a number with a fraction or an exponent, or beyond 64 bits | float64 | float, double |
| a string | string | text, decimal, date, time, datetime, timestamp (in the changefeed's zone), JSON, vector; Base64 of bytes |
| `null` in all images of the row | string | any |

Integers, text, decimals, dates and times, JSON and the numbers of enum and set come back as they were. Bytes look like text, so
they stay in Base64. A float is the number of its shortest digits. The message does not name the key's columns.

## DDL

To every partition; the key is that of open-protocol without its frame. `ts` is the exact commit ts here.

{framed_key(ddl["key"])}
{document_of(ddl["value"])}
`type` names one kind of DDL only if it is `table-create`, `table-drop`, `database-create` or `database-drop`; for others the kind
is missing. TiCDC panics at many DDLs, at updates of bytes, and at vectors that are NULL, so such a topic lacks those messages.
"""


def framed_key(key: str) -> str:
    """A JSON document on one line."""
    return f"```json\n{bytes.fromhex(key).decode()}\n```\n"


def debezium_page() -> str:
    """Debezium."""
    one, ddl = message("debezium_no_schema", "row"), message("debezium_no_schema", "ddl")
    mark = message("debezium_extension", "checkpoint")
    schema = json.loads(bytes.fromhex(message("debezium_extension", "row")["key"]))["schema"]
    return f"""# Debezium

{NOTE}

The format of Debezium's connector for MySQL, as TiCDC writes it: `protocol=debezium`. Each row is one Kafka message. Key and value
are JSON with a `payload` and, unless `debezium-disable-schema=true`, the `schema` that Kafka Connect needs to read it. Row by row:
`codec/protocols/debezium`; compiled: `codec/kernels/encode_kernels.py`, `codec/kernels/connect_kernels.py`, `codec/kernels/decode_kernels.py`.

## A row

The key has the columns of the handle key:

{document_of(one["key"])}
{document_of(one["value"])}
`op` is `c`, `u` or `d`. An update has `before`, unless `[sink.debezium] output-old-value = false`; a delete has `after` null
before `before`. `source.ts_ms` is the commit's time, the outer `ts_ms` the encoder's clock, both in ms.

| column | schema | value |
|---|---|---|
| tinyint, smallint; mediumint, int | `int16`; `int32`; the next wider one for unsigned smallint and int | number |
| bigint | `int64` | number; from 2^63 on the negative number of the same bits |
| float, double, decimal | `float` (`double` with digits given), `double`, `double` | number; a decimal is the nearest double |
| year | `int32`, `io.debezium.time.Year` | number |
| bit(1); longer | `boolean`; `bytes`, `io.debezium.data.Bits` | true, false; Base64 of little-endian bytes |
| char, varchar, text; binary, varbinary, blob | `string` | text; Base64 |
| enum; set | `string`, `io.debezium.data.Enum`, `EnumSet` | names; empty for a number that has none |
| date | `int32`, `io.debezium.time.Date` | days since 1970 |
| datetime | `int64`, `io.debezium.time.Timestamp` up to 3 digits of a second, else `MicroTimestamp` | ms or us since 1970 |
| timestamp | `string`, `io.debezium.time.ZonedTimestamp` | text in UTC, whatever the changefeed's zone |
| time | `int64`, `io.debezium.time.MicroTime` | us |
| json; vector | `string`, `io.debezium.data.Json`; `TiDBVectorFloat32` | TiDB's text |

NULL is null, except in a column with a default, where TiCDC writes the default. A date that does not exist is null, or 0 in
a column that is not nullable, and a timestamp of zero is `1970-01-01T00:00:00Z`. Classic TiCDC stops at a datetime like
`2020-00-00`; the new one writes null or 0, and so do we.

A table's virtual columns have fields in `schema`, after all others, and no values.

With `debezium-include-start-ts=true` in the sink URI, or `[sink.debezium] include-start-ts = true`, the `source` of a row has the
start ts of its transaction after `commit_ts`: `"start_ts":470613016205066240`. Only TiCDC's new architecture has this option: it
is refused unless `[tidegate] flavour = "new"`. DDL and watermarks have no transaction, and no start ts. Our readers ignore
the start ts.

## The schema

With `enable-tidb-extension=true` a field has `tidb_type`. Without it bytes look like text, decimals like
doubles, and unsigned numbers like signed ones. The schema of the key above:

{document_of(orjson.dumps(schema).hex())}
In the flavour `new` the schema also has `commit_ts` and `cluster_id` of `source`, if the extension is on, and `start_ts` if rows
have it. The classic flavour has them in the payload only.

Without a schema the types are unknown, and a guess would turn numbers into dates. Such messages are for other readers;
Tidegate's consumer refuses them. See [protocols](protocols.md) for everything else that is lost.

## DDL

To every partition; its key is the schema's name. `tableChanges` has the table's definition after it:

{document_of(ddl["value"])}
Two things differ from TiCDC. It sends nothing for RECOVER TABLE and for changes of TTL, and we do, because the event itself
is in the message's header ([DDL](ddl.md)). And it parses the query again and takes the comment, the length of times and the
default of the query's columns from there, while ours are always the table's own.

## Watermark

With `enable-tidb-extension=true` it is sent to every partition. Its key is empty, and its schema is that of a row without images:

{document_of(orjson.dumps({"payload": json.loads(bytes.fromhex(mark["value"]))["payload"]}).hex())}"""


PAGES: Final[dict[str, Callable[[], str]]] = {
    "keys.md": keys_page,
    "rows.md": rows_page,
    "values.md": values_page,
    "checksums.md": checksums_page,
    "open-protocol.md": open_page,
    "canal-json.md": canal_page,
    "simple.md": simple_page,
    "debezium.md": debezium_page,
    "ticdc-mq.md": mq_page,
    "maxwell.md": maxwell_page,
    "protocols.md": protocols_page,
}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())
