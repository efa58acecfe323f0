"""Every recorded configuration of messages, of both architectures: encoded, decoded, or refused in words.

Encoded: our bytes are those recorded. Decoded: what was recorded comes back as the rows it was made from, up
to the protocol's losses. Refused: the settings; or the messages, which are set aside. `STATED` says which of
it holds for which configuration, and no configuration is without a word.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from tests import golden_folder
from tests.codec import golden
from tests.codec.test_canal_json import comparable
from tests.codec.test_simple import without_build_time
from tests.contracts.codec_rows import expected_of
from tests.golden_folder import count, lines, names
from tidegate.codec.base import Batch, CodecOptions, Decoded, describe
from tidegate.codec.decode import decoder
from tidegate.codec.decoding.opening import opened
from tidegate.codec.entry import Loss, ReadCodec, RowCodec
from tidegate.codec.formats.avro_binary import varint
from tidegate.codec.large import LargeOptions, claim, unclaimed
from tidegate.codec.protocols.simple import avro
from tidegate.codec.registry import CODECS, codec_options, reader_of
from tidegate.codec.schema_book import SchemaBook
from tidegate.errors import InvalidInput
from tidegate.model.message import Message
from tidegate.model.row import RowChange, RowChecksum, Value
from tidegate.model.schema import Kind, TableSchema

CLASSIC, NEW = "messages", "messages_new"
CONFIGS = [(part, name) for part in (CLASSIC, NEW) for name in names(part)]

BYTES = "our bytes"
READ_ONLY = "read, not written"
NO_PROTOCOL = "no such protocol here"
NO_OPTION = "this option is not known"
ROWS = "rows"
REDUCED = "rows too large for a message are named"
NOTHING = "set aside"
ZONES = "rows, but timestamps of keys in the feed's zone, which classic leaves in UTC"
STALE = "rows by column flags that its encoder kept from before a DDL"
VIRTUAL = "rows, with the virtual columns, as NULL, that classic leaves out"
UNREAD = "not read"
DEFECT = "Incorrect datetime value"
"""Classic's debezium stops at a date without month or day; the new one writes NULL or 0, and so do we."""
BUILD_MS = 1_795_246_228_000
"""As long as the time of building that was recorded, since sizes count it."""
NOT_THEIRS = "00000000-0000-4000-8000-000000000000.json"
BUILT = re.compile(rb'("cluster_id":"default"},"ts_ms":)\d+')

STATED: dict[str, dict[tuple[str, frozenset[str]], str]] = {
    CLASSIC: {
        (NO_PROTOCOL, frozenset({UNREAD})): (
            "canal_protobuf craft csv_default csv_full_options csv_header csv_multi_delim csv_no_quote"
        ),
        (READ_ONLY, frozenset({ROWS})): "maxwell",
        (BYTES, frozenset({ROWS, REDUCED})): (
            "canaljson_claim_check canaljson_claim_check_raw canaljson_handle_key_only open_claim_check "
            "open_handle_key_only simple_json_claim_check simple_json_handle_key_only"
        ),
        (BYTES, frozenset({ROWS})): (
            "canaljson_content_compatible canaljson_default canaljson_tidb_extension "
            "canaljson_tz_newyork canaljson_updated_only debezium_default "
            "debezium_extension open_batch16 open_batch_bytes open_default "
            "open_delete_handle_only open_no_old_value open_too_large open_tz_shanghai "
            "open_updated_only simple_avro simple_avro_checksum simple_json simple_json_checksum "
            "simple_json_tz "
            "canaljson_lz4 canaljson_snappy open_lz4 open_snappy simple_json_lz4"
        ),
        (BYTES, frozenset({ROWS, NOTHING})): (
            "avro_checksum avro_default avro_extension avro_string_modes avro_watermark "
            "canaljson_delete_handle_only"
        ),
        (BYTES, frozenset({NOTHING})): ("debezium_no_old_value debezium_no_schema debezium_tz_shanghai"),
        (NO_OPTION, frozenset({ROWS})): ("canaljson_storage"),
    },
    NEW: {
        (NO_PROTOCOL, frozenset({UNREAD})): ("debezium_avro"),
        (BYTES, frozenset({ROWS})): (
            "canaljson_content_compatible canaljson_default canaljson_output_row_key "
            "canaljson_tidb_extension debezium_default debezium_extension_start_ts open_default "
            "open_delete_handle_only open_snappy open_tz_shanghai simple_avro simple_json"
        ),
        (BYTES, frozenset({ROWS, VIRTUAL})): ("avro_before_value"),
        (BYTES, frozenset({ROWS, NOTHING, VIRTUAL})): (
            "avro_checksum avro_default avro_extension avro_watermark"
        ),
        # The new architecture sums columns in the table's order, and its rows do not tell that order: those
        # of tables whose columns were moved are set aside, as its own reader does.
        (BYTES, frozenset({ROWS, NOTHING})): (
            "canaljson_delete_handle_only open_updated_only simple_json_checksum"
        ),
        (BYTES, frozenset({ROWS, REDUCED})): ("canaljson_handle_key_only open_handle_key_only"),
        (BYTES, frozenset({NOTHING})): ("debezium_no_schema"),
        (BYTES, frozenset({ROWS, ZONES})): ("canaljson_tz_newyork"),
        (BYTES, frozenset({ROWS, STALE})): ("open_batch16"),
    },
}
"""By part, what becomes of the settings and of the messages: the configurations of which it holds."""


def options_of(part: str, config: dict[str, Any]) -> CodecOptions:
    """The options of a recorded configuration; InvalidInput when they are not ours."""
    given = config["options"] or {}
    named = {name.removeprefix("open.").replace(".", "-"): value for name, value in given.items()}
    named |= {"max-batch-size": config["max_batch_size"]} if "max_batch_size" in config else {}
    named.pop("max-message-bytes", None)
    named.pop("claim-check-storage-uri", None)
    flavour = "classic" if part == CLASSIC else "new"
    options = codec_options({"protocol": config["protocol"], **named, "flavour": flavour})
    return replace(options, max_message_bytes=config["max_message_bytes"])


def placed(options: Any, config: dict[str, Any], records: list[dict[str, Any]]) -> Any:
    """The options with the ids that the recorded registry gave."""
    schemas, book = reader_of(options).schemas, SchemaBook()
    for record in records:
        if record["kind"] == "schema":
            book.add(record["id"], record["schema"], record["subject"])
    return options if schemas is None else schemas.placed(options, config["topic"], "default", book)


def says_nothing(record: dict[str, Any]) -> bool:
    """Whether it is avro's delete of a table without a key: null and null, or a commit ts alone."""
    if record["kind"] != "row" or record["key"] is not None:
        return False
    return record["value"] is None or record["value"].startswith("03")


def understood(config: dict[str, Any]) -> CodecOptions:
    """Those of its options that say what the messages lack, for a protocol of ours."""
    kind = CODECS[config["protocol"]].options
    known = {f.name for f in fields(kind)} - {"max_message_bytes"}
    named = {name.removeprefix("open.").replace(".", "-"): v for name, v in (config["options"] or {}).items()}
    given = {name.replace("-", "_"): value for name, value in named.items()}
    return kind(**{name: value for name, value in given.items() if name in known})


def rows_of(zone: str, record: dict[str, Any]) -> list[RowChange]:
    """The row changes a record was made of, with timestamps in a zone."""
    events = record["events"] if "events" in record else [[record["case"], record["seq"]]]
    return [
        golden.case(case).row(seq, zone, part[0] if part else record.get("part"))
        for case, seq, *part in events
    ]


def is_there(record: dict[str, Any]) -> bool:
    """Whether the folder has the rows that a record was made of."""
    events = record.get("events", [[record.get("case"), record.get("seq")]])
    present = names("rows")
    return all(case in present and seq in golden.case(case).records for case, seq, *_ in events)


@pytest.mark.golden
@pytest.mark.parametrize(("part", "name"), CONFIGS)
def test_a_configuration_is_encoded_decoded_or_refused_as_stated(part: str, name: str) -> None:
    records = lines(f"{part}/{name}")
    config, kept = next(records), list(records)
    codec = CODECS.get(config["protocol"])
    try:
        options = options_of(part, config)
    except InvalidInput as error:
        encoded = error.why
        count(part, f"{golden_folder.SKIPPED}{name}: refused: {error.what}: {encoded}")
    else:
        encoded = BYTES if isinstance(codec, RowCodec) else READ_ONLY
        options = placed(options, config, kept)
    if encoded == BYTES:
        compared = encode(part, name, config, kept, options)
        assert compared > 0 or golden_folder.folder() != golden_folder.OURS
    decoded = frozenset({UNREAD})
    if isinstance(codec, ReadCodec):
        decoded = decode(part, name, config, kept, codec)
    if golden_folder.folder() == golden_folder.OURS:
        assert name in STATED[part][encoded, decoded].split()


def test_every_configuration_has_its_statement() -> None:
    for part, stated in STATED.items():
        found = sorted(path.name.partition(".")[0] for path in (golden_folder.OURS / part).iterdir())
        assert sorted(name for names_ in stated.values() for name in names_.split()) == found


def encode(
    part: str, name: str, config: dict[str, Any], records: list[dict[str, Any]], options: CodecOptions
) -> int:
    """Compare our bytes with all that was recorded; how many records were rows."""
    codec, lacking, compared = CODECS[config["protocol"]], Counter[str](), 0
    assert isinstance(codec, RowCodec)
    claims = Recorded((config["options"] or {}).get("claim-check-storage-uri", ""))
    if isinstance(options, LargeOptions):
        options = replace(options, claims=claims)
    encoder = codec.encoder(options)
    for record in records:
        if record["kind"] == "checkpoint":
            count(part, f"{name}: {record['kind']} messages")
            _same(encoder.encode_resolved(record["ts"]), record, options)
        elif record["kind"] == "schema":
            count(part, f"{name}: schemas")
        elif record["kind"] == "ddl":
            lacking["DDL messages, whose events are not in rows/"] += 1
        elif not is_there(record):
            lacking["messages of rows that are not here, or that TiCDC could not mount"] += 1
        elif "error" in record and DEFECT in record["error"]:
            lacking["messages of dates that TiCDC cannot encode"] += 1
        elif part == NEW and "panic" in record.get("error", ""):
            lacking["messages at which TiCDC panics"] += 1
        elif "error" in record or says_nothing(record):
            compared += 1
            claims.expect(record)
            with pytest.raises(InvalidInput):
                encoder.encode_rows(rows_of(config["time_zone"], record), BUILD_MS)
            assert not claims.stored
        elif part == NEW and (why := _defect_of_new(config, record, codec)):
            lacking[why] += 1
        else:
            compared += 1
            count(part, f"{name}: {record['kind']} messages")
            theirs = record["messages"] if record["kind"] == "batch" else [record]
            claims.expect(record)
            rows = rows_of(config["time_zone"], record)
            if part == NEW:
                rows = _as_new_mounts(rows, options, theirs, codec)
            if part == NEW and "checksum" in record:
                # Summed in the table's order of columns; the rows were recorded with classic's sums.
                rows = [replace(row, checksum=RowChecksum(**record["checksum"])) for row in rows]
            if part == CLASSIC and "part" in record:
                rows = [without_sums(row) for row in rows]
            ours = encoder.encode_rows(rows, BUILD_MS)
            if bool(claims.stored) != claims.is_wanted:
                # One library compresses a little better than the other, and the limit is between them.
                lacking[_both_sides(config, record, claims, options)] += 1
                continue
            for message, other in zip(ours, theirs, strict=True):
                _same(message, other, options)
            claims.check(options)
    for why, number in lacking.items():
        count(part, f"{golden_folder.SKIPPED}{name}: {why}", number)
    return compared


def _defect_of_new(config: dict[str, Any], record: dict[str, Any], codec: RowCodec) -> str:
    """Why what the new architecture sends of these rows is not what it should be; empty: it is."""
    rows = rows_of(config["time_zone"], record)
    if record["kind"] == "batch":
        read = codec.decoder(understood(config)).decode(_batch(record["messages"]))
        flags = {
            (row.table.schema, row.table.table, row.commit_ts, column.name): flag
            for row in rows
            for column, flag in zip(row.table.columns, row.table.ticdc_flags, strict=True)
        }
        if read.bad:
            return "messages with column flags from before a DDL"
        for table in read.rows:
            for ts, column in itertools.product(table.commit_ts.tolist(), table.columns):
                if flags[table.schema, table.table, ts, column.name] != column.flag:
                    return "messages with column flags from before a DDL"
    value = bytes.fromhex(record["value"]) if record.get("value") else b""
    if b'"p":{"t":' in value or re.search(rb'[}0-9"l],"t":\d+,"f":', value):
        return "messages that are no JSON: a column that became NULL has lost its name"
    if codec.name == "debezium" and b'"schema":{' in value and _has_virtual(rows[0].table):
        return "messages whose schema lists virtual columns twice"
    if codec.unread(understood(config)) and any(c.kind is Kind.VECTOR for c in rows[0].table.columns):
        return "messages of vectors, which classic, whose values were recorded, may mount as []"
    return ""


def _has_virtual(table: TableSchema) -> bool:
    return len(table.info["cols"]) > len(table.columns)


def _batch(messages: list[dict[str, Any]]) -> Batch:
    keys, values = (
        [None if one[side] is None else bytes.fromhex(one[side]) for one in messages]
        for side in ("key", "value")
    )
    return Batch([key or None for key in keys], values, range(len(messages)))


def _as_new_mounts(
    rows: list[RowChange], options: CodecOptions, messages: list[dict[str, Any]], codec: RowCodec
) -> list[RowChange]:
    """The rows with what classic, whose values were recorded, mounts otherwise.

    Classic takes VECTOR for `[]` in a row of the old format, and leaves a key's TIMESTAMP in UTC.
    """
    reader, taken = decoder(options), {Kind.VECTOR} if codec.utc else {Kind.VECTOR, Kind.TIMESTAMP}
    if not any(column.kind in taken for row in rows for column in row.table.columns):
        return rows
    for row in rows:
        if codec.definitions is None:
            break
        stated = codec.definitions.encode(row.table, options, 0)
        reader.decode(Batch([stated.key], [stated.value], [0]))
    shown = [one for one in describe(reader.decode(_batch(messages))) if one["kind"] != "bad"]

    def mounted(
        row: RowChange, image: tuple[Value, ...] | None, theirs: dict[str, Any] | None
    ) -> tuple[Value, ...] | None:
        if image is None or theirs is None:
            return image
        return tuple(
            theirs.get(column.name, cell) if column.kind in taken else cell
            for column, cell in zip(row.table.columns, image, strict=True)
        )

    return (
        [
            replace(row, new=mounted(row, row.new, one["new"]), old=mounted(row, row.old, one["old"]))
            for row, one in zip(rows, shown, strict=True)
        ]
        if len(shown) == len(rows)
        else rows
    )


def without_sums(row: RowChange) -> RowChange:
    """As classic sends half of a split update: the halves share one checksum, so each loses its sum, too."""
    return row if row.checksum is None else replace(row, checksum=RowChecksum(0, 0, *row.checksum[2:]))


class Recorded:
    """The storage of a recorded configuration: gives the recorded names, compares what is put."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._record: dict[str, Any] = {}
        self.stored: list[bytes] = []

    def expect(self, record: dict[str, Any]) -> None:
        self._record, self.stored = record, []

    @property
    def is_wanted(self) -> bool:
        """Whether TiCDC has put this row into the storage."""
        return "claim_check_file" in self._record

    def location(self) -> str:
        return f"{self._uri}/{self._record.get('claim_check_file', NOT_THEIRS)}"

    def store(self, location: str, content: bytes) -> None:
        assert location == self.location()
        self.stored.append(content)

    def check(self, options: CodecOptions) -> None:
        """The stored bytes are those that TiCDC stored."""
        for ours in self.stored:
            assert isinstance(options, LargeOptions)
            theirs = bytes.fromhex(self._record["claim_check_content"])
            (our_key, our_value), (key, value) = unclaimed(options, ours), unclaimed(options, theirs)
            assert our_key == key
            _same(Message(None, our_value), {"key": None, "value": value.hex()}, options)
            # The bytes around them, too: Base64 and the order of the members.
            assert claim(options, key, value) == theirs


def _both_sides(
    config: dict[str, Any], record: dict[str, Any], claims: Recorded, options: CodecOptions
) -> str:
    """A row that one of the two sends whole and the other does not: its sizes are next to each other."""
    assert isinstance(options, LargeOptions)
    assert options.large_message_handle_compression != "none"
    content = claims.stored[0] if claims.stored else bytes.fromhex(record["claim_check_content"])
    _, value = unclaimed(options, content)
    assert 0 < len(value) + 36 - config["max_message_bytes"] < 40
    return "messages that are compressed to the other side of the limit"


def _same(message: Message | None, record: dict[str, Any], options: CodecOptions) -> None:
    assert (message is None) == record.get("no_message", False)
    if message is None:
        return
    assert (message.key.hex() if message.key else None) == (record["key"] or None), record
    if record["value"] is None:
        # Classic's delete has no commit ts; ours has one if there are watermarks, like the new one's.
        assert message.value is None or (message.value[0], len(message.value)) == (3, 9)
        return
    assert message.value is not None
    ours, value = unpacked(message.value, options), unpacked(bytes.fromhex(record["value"]), options)
    if value[:1] == b"\x16":
        # The members of `data` and `old` come in any order, since TiCDC writes Go's maps.
        mine, theirs = avro.message(ours), avro.message(value)
        assert len(value) == len(ours) + len(varint(theirs["buildTs"])) - len(varint(mine["buildTs"]))
        assert mine | {"buildTs": 0} == theirs | {"buildTs": 0}
        return
    same = comparable if b'"mysqlType":' in value else clockless
    assert same(ours) == same(value), record


def unpacked(value: bytes, options: CodecOptions) -> bytes:
    """A value without compression: its bytes differ between libraries."""
    large = reader_of(options).large
    if not isinstance(options, LargeOptions) or large is None:
        return value
    return opened(value, options.large_message_handle_compression, framed=large.framed)


def clockless(value: bytes) -> bytes:
    """A message with the time of its building set to 0, whatever its protocol."""
    return without_clock(without_build_time(value))


def without_clock(value: bytes) -> bytes:
    """A message with debezium's time of building, behind the commit ts, set to 0."""
    return BUILT.sub(rb"\g<1>0", value, count=1)


def decode(
    part: str, name: str, config: dict[str, Any], records: list[dict[str, Any]], codec: ReadCodec
) -> frozenset[str]:
    """Decode all that was recorded and compare it with the rows; what came of it."""
    options = placed(understood(config), config, records)
    losses, seen = codec.losses(options), Counter[str]()
    zone = "UTC" if codec.utc else config["time_zone"]
    for record in records:
        has_rows = record["kind"] in ("row", "batch", "txn")
        if (
            record["kind"] == "schema"
            or "error" in record
            or record.get("no_message")
            or (has_rows and not is_there(record))
        ):
            continue
        keys, values = zip(*messages_of(config, record), strict=True)
        reader = decoder(options)
        if has_rows and codec.definitions is not None:
            for row in rows_of(zone, record):
                stated = codec.definitions.encode(row.table, options, 0)
                assert reader.decode(Batch([stated.key], [stated.value], [0])) == Decoded()
        decoded = reader.decode(Batch(keys, values, range(len(keys))))
        if codec.unread(options):
            assert len(decoded.bad) == len(keys)
            seen[NOTHING] += has_rows
        elif record["kind"] == "checkpoint":
            assert [ts for ts, _ in decoded.resolved] == [record["ts"]]
        elif record["kind"] == "ddl":
            assert [ddl.query for ddl in decoded.ddls] == [record["query"]]
        else:
            seen[_judged(part, decoded, rows_of(zone, record), losses)] += 1
    for what, number in seen.items():
        count(part, f"{name}: messages decoded: {what}", number)
    return frozenset(seen)


def messages_of(
    config: dict[str, Any], record: dict[str, Any]
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """The messages of a record; of files their lines."""
    for one in record.get("messages", [record]):
        value = bytes.fromhex(one["value"]) if one["value"] is not None else None
        if value is not None and "terminator" in config:
            yield from ((None, line) for line in value.split(config["terminator"].encode()) if line)
        else:
            yield bytes.fromhex(one["key"]) if one["key"] else None, value


def _judged(part: str, decoded: Decoded, rows: list[RowChange], losses: frozenset[Loss]) -> str:
    """How the messages of these rows were read; fails when it is none of the ways."""
    if decoded.bad and not decoded.rows:
        reduced = {bad.reduced_ts for bad in decoded.bad}
        return NOTHING if reduced == {None} else REDUCED
    found = [{name: value for name, value in one.items() if name != "offset"} for one in describe(decoded)]
    wanted = [expected_of(losses, row) for row in rows]
    if part == NEW:
        if Loss.NAMES in losses and _drop_virtual(found, wanted) and found == wanted:
            return VIRTUAL
        _take_vectors(found, wanted, rows)
    if found == wanted:
        return ROWS
    assert part == NEW, (found, wanted)
    if len(rows) > 1:
        # It keeps flags by table id over DDLs, which then tell bytes from text, and sign, wrongly.
        places = [(one["schema"], one["table"], one["commit_ts"]) for one in wanted]
        shown = [one for one in found if one["kind"] != "bad"]
        assert {(one["schema"], one["table"], one["commit_ts"]) for one in shown} <= set(places)
        return STALE
    for one, other in zip(found, wanted, strict=True):
        for side in ("old", "new"):
            for column in rows[0].table.columns if one[side] else ():
                if column.kind is Kind.TIMESTAMP:
                    one[side].pop(column.name), other[side].pop(column.name)
    assert found == wanted
    return ZONES


def _drop_virtual(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> bool:
    """Leave out what the new avro sends of virtual columns, which is NULL; whether there were any."""
    extra = [
        (image, name)
        for one, other in zip(found, wanted, strict=True)
        for side in ("old", "new")
        for image in (one[side],)
        for name in (image or {}).keys() - (other[side] or image or {}).keys()
        if image[name] is None
    ]
    for image, name in extra:
        del image[name]
    return bool(extra)


def _take_vectors(found: list[dict[str, Any]], wanted: list[dict[str, Any]], rows: list[RowChange]) -> None:
    """Classic mounts every vector in a row of format 1 as `[]`, and the recorded rows are classic's."""
    if len(found) != len(wanted):
        return
    for one, other, row in zip(found, wanted, rows, strict=True):
        names = [column.name for column in row.table.columns if column.kind is Kind.VECTOR]
        for side in ("old", "new"):
            for name in names:
                if one.get(side) and other[side] and other[side].get(name) == "[]":
                    other[side][name] = one[side][name]
