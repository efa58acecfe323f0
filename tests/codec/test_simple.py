"""Simple against TiCDC's classic encoder; only `buildTs` may differ. And what its decoder refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codec import golden
from tests.contracts.codec_rows import golden_rows
from tests.golden_folder import names
from tidegate.codec.base import Batch, Decoded, describe
from tidegate.codec.decode import decoder
from tidegate.codec.definitions import definition_block
from tidegate.codec.protocols.simple import avro, avro_write, plain
from tidegate.codec.protocols.simple.bulk import SimpleBulkDecoder
from tidegate.codec.protocols.simple.definition import version_of
from tidegate.codec.protocols.simple.message import SimpleOptions
from tidegate.codec.protocols.simple.plain import SimpleDecoder, may_define, versions
from tidegate.codec.protocols.simple.plain_write import SimpleEncoder
from tidegate.codec.registry import canonical, codec_of, codec_options
from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.errors import InvalidInput
from tidegate.model.row import RowChecksum
from tidegate.model.schema import Kind, TableSchema

OPTIONS = SimpleOptions()
SUMMED = SimpleOptions(integrity_check_level="correctness")
ENCODER = SimpleEncoder(OPTIONS)


def without_build_time(value: bytes) -> bytes:
    """The bytes with build time 0."""
    return re.sub(rb'"buildTs":\d+', b'"buildTs":0', value, count=1)


@cache
def table_infos() -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Every TableInfo of the recordings, by table id and the version that simple names."""
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for part in ("rows", "ddl"):
        for name in names(part):
            for record in golden.lines(f"{part}/{name}"):
                info = record.get("table_info") if record["kind"] == "table_info" else None
                if record["kind"] == "meta" and b'"cols"' in bytes.fromhex(record["value"] or ""):
                    info = json.loads(bytes.fromhex(record["value"]))
                if info is not None and "update_timestamp" in info:
                    found.setdefault((info["id"], info["update_timestamp"]), []).append(info)
    return found


def infos_of(stated: dict[str, Any] | None) -> list[dict[str, Any] | None]:
    """The table a recorded `tableSchema` may come from. TiCDC takes the name from the DDL."""
    if stated is None:
        return [None]
    found = table_infos()[stated["tableID"], stated["version"]]
    return [{**info, "name": {"O": stated["table"]}} for info in found]


def test_ddl_messages_and_definitions_are_ticdcs_bytes() -> None:
    compared = 0
    for record in golden.lines("messages/simple_json"):
        if record["kind"] != "ddl":
            continue
        value = bytes.fromhex(record["value"])
        body = json.loads(value)
        sides = [body.get(name) for name in ("tableSchema", "preTableSchema")]
        now, before = sides
        event = golden.ddl_event(record, now["schema"] if now else "", now["table"] if now else "")
        made = [
            replace(event, old_schema=before["schema"] if before else "", after=one, before=other)
            for one in infos_of(now)
            for other in infos_of(before)
        ]
        ours = {without_build_time(ENCODER.encode_ddl(one).value or b"") for one in made}
        assert without_build_time(value) in ours
        assert versions(value) == [(s["schema"], s["table"], s["version"]) for s in sides if s]
        assert may_define(value) == (now is not None)
        compared += 1
    assert compared > 400


@pytest.mark.parametrize("name", ["tableSchema", "preTableSchema"])
def test_definitions_in_avro_are_ticdcs_bytes(name: str) -> None:
    """And watermarks; made of what the JSON of the same event tells, with the time it was built at."""
    pairs = zip(golden.lines("messages/simple_avro"), golden.lines("messages/simple_json"), strict=True)
    compared = 0
    for packed, json_one in pairs:
        if packed["kind"] in ("ddl", "checkpoint"):
            value, body = bytes.fromhex(packed["value"]), json.loads(bytes.fromhex(json_one["value"]))
            assert avro_write.message(body | {"buildTs": avro.message(value)["buildTs"]}) == value
            compared += body.get(name) is not None
    assert compared > 150


def test_watermarks_are_ticdcs_bytes() -> None:
    marks = [record for record in golden.lines("messages/simple_json") if record["kind"] == "checkpoint"]
    for record in marks:
        ours = ENCODER.encode_resolved(record["ts"]).value or b""
        assert without_build_time(ours) == without_build_time(bytes.fromhex(record["value"]))
    assert len(marks) > 5


# --- reading


ROW = (
    b'{"version":1,"database":"s","table":"t","tableID":7,"type":"INSERT","commitTs":5,"buildTs":6,'
    b'"schemaVersion":8,"data":{"id":"1","m":{"location":"UTC","value":"2024-01-01 00:00:00"}}}'
)
BOOTSTRAP = (
    b'{"version":1,"type":"BOOTSTRAP","commitTs":0,"buildTs":1,"tableSchema":{"schema":"s","table":"t",'
    b'"tableID":7,"version":8,"columns":[{"name":"id","dataType":{"mysqlType":"int","charset":"binary",'
    b'"collate":"binary","length":11},"nullable":false,"default":null},{"name":"m","dataType":{"mysqlType":'
    b'"timestamp","charset":"binary","collate":"binary"},"nullable":true,"default":null}],"indexes":[{"name":'
    b'"primary","unique":true,"primary":true,"nullable":false,"columns":["id"]}]}}'
)


def decoded(*values: bytes, zone: str = "UTC") -> Decoded:
    """By the compiled decoder, which the plain one agrees with."""
    batch = Batch([None] * len(values), values, range(len(values)))
    options = SimpleOptions(time_zone=zone)
    expected, fast = SimpleDecoder(options).decode(batch), decoder(options)
    fast.decode(batch)
    found = fast.decode(batch)
    assert describe(found) == describe(expected)
    return found


def why(*values: bytes, zone: str = "UTC") -> str:
    """Return why the one bad message among them is refused."""
    (bad,) = decoded(*values, zone=zone).bad
    return bad.why


def test_a_row_is_read_with_the_definition_it_names() -> None:
    (table,) = decoded(BOOTSTRAP, ROW).rows
    assert table.new is not None
    assert table.new.to_pylist() == [{"id": 1, "m": "2024-01-01 00:00:00"}]
    assert [(column.name, column.key, column.zone) for column in table.columns] == [
        ("id", True, ""),
        ("m", False, "UTC"),
    ]


def test_a_row_whose_definition_is_not_there_says_which() -> None:
    found = decoded(BOOTSTRAP, ROW.replace(b'"schemaVersion":8', b'"schemaVersion":9'))
    assert [bad.unknown for bad in found.bad] == [("s", "t", 9)]


def test_the_least_recently_used_definition_is_evicted_and_may_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plain, "MAX_DEFINITIONS", 2)
    reader, offsets = SimpleDecoder(OPTIONS), range(1)

    def tell(version: int) -> None:
        stated = BOOTSTRAP.replace(b'"version":8', b'"version":%d' % version)
        assert reader.decode(Batch([None], [stated], offsets)) == Decoded()

    def is_read(version: int) -> bool:
        row = ROW.replace(b'"schemaVersion":8', b'"schemaVersion":%d' % version)
        return not reader.decode(Batch([None], [row], offsets)).bad

    tell(8), tell(9)
    assert is_read(8)
    tell(10)
    assert [is_read(version) for version in (8, 9, 10)] == [True, False, True]
    tell(9)
    assert is_read(9)


def test_rows_of_a_partition_tell_it() -> None:
    (table,) = decoded(BOOTSTRAP, ROW.replace(b'"tableID":7', b'"tableID":70')).rows
    assert table.physical_id == 70


@pytest.mark.parametrize(
    ("there", "instead", "words"),
    [
        (b'"version":1,"database"', b'"version":2,"database"', "version of the protocol"),
        (b'"INSERT"', b'"UPSERT"', "unknown type 'UPSERT'"),
        (b'"INSERT"', b'"DELETE"', "the images of DELETE"),
        (b'"id":"1"', b'"id":1', "holds int, not a string"),
        (b'"id":"1"', b'"id":"1_0"', "a text that is no integer"),
        (b'"id":"1"', b'"other":"1"', "has no column 'other'"),
        (b'{"location":"UTC","value":"2024-01-01 00:00:00"}', b'"2024-01-01 00:00:00"', "no TIMESTAMP"),
        (b'"location":"UTC"', b'"location":"Asia/Shanghai"', "in the zone 'Asia/Shanghai', not in 'UTC'"),
        (b'"data"', b'"handleKeyOnly":true,"data"', "s.t was too large for a message: only its key is"),
        (b'"data"', b'"claimCheckLocation":"s3://b?k=secret/x.json","data"', "claim-check storage as x.json"),
        (
            b'"data"',
            b'"checksum":{"version":2,"corrupted":true,"current":1,"previous":0},"data"',
            "corrupted",
        ),
    ],
)
def test_a_row_that_is_not_what_it_should_be_is_set_aside_in_words(
    there: bytes, instead: bytes, words: str
) -> None:
    assert there in ROW
    assert words in why(BOOTSTRAP, ROW.replace(there, instead))
    assert "secret" not in why(BOOTSTRAP, ROW.replace(there, instead))


def summed(current: object, previous: object = 0) -> bytes:
    text = f'"checksum":{{"version":2,"corrupted":false,"current":{current},"previous":{previous}}},"data"'
    return ROW.replace(b'"data"', text.encode())


SUM = crc32(b"\1" + bytes(7) + b"\x13\0\0\0" + b"2024-01-01 00:00:00")


def test_a_row_is_compared_with_its_checksum() -> None:
    found = decoded(BOOTSTRAP, summed(SUM), summed(0), summed("null"), summed(SUM, 5))
    assert found.bad == []
    assert "s.t with id=1 at commit ts 5 is not what its checksum says" in why(BOOTSTRAP, summed(SUM ^ 1))
    # Next to valid rows, from which the compiled decoder learns the shape.
    for strange in (SUM ^ 1, "true", '"1"', "1.5", -1):
        assert len(decoded(BOOTSTRAP, ROW, summed(SUM), summed(strange)).bad) == 1
    # The sum of an image that a row has not is not compared, though others in the batch have one.
    update = summed(SUM, SUM).replace(b'"INSERT"', b'"UPDATE"')
    update = update[:-1] + b',"old":' + update.partition(b'"data":')[2]
    delete = summed(5, SUM).replace(b'"INSERT"', b'"DELETE"').replace(b'"data"', b'"old"')
    mixed = decoded(BOOTSTRAP, update, summed(SUM, 5), delete)
    assert (mixed.bad, [len(table) for table in mixed.rows]) == ([], [3])
    # A checksum must be a valid number, also that of an image that an insert does not have.
    assert len(decoded(BOOTSTRAP, ROW, summed(SUM), summed(SUM, 1 << 32)).bad) == 1


@pytest.mark.parametrize("encoding", ["json", "avro"])
def test_either_image_is_compared(encoding: str) -> None:
    options = replace(SUMMED, encoding_format=encoding)
    rows = [row for rows in golden_rows() for row in rows if row.checksum and row.old and row.new]
    for row in rows[::10]:
        assert row.checksum is not None
        current, previous, version, _ = row.checksum
        wrong = [
            replace(row, checksum=RowChecksum(*sums, version, False))
            for sums in ((current, previous), (current ^ 1, previous), (current, previous ^ 1))
        ]
        encoder = SimpleEncoder(options)
        values = [message.value for message in encoder.encode_rows(wrong)]
        reader = decoder(options)
        assert reader.decode(Batch([None], [encoder.encode_definition(row.table).value], [0])).bad == []
        for _ in range(2):
            found = reader.decode(Batch([None] * 3, values, range(3)))
            assert [bad.offset for bad in found.bad] == [1, 2]
            assert sum(map(len, found.rows)) == 1


@pytest.mark.parametrize("encoding", ["json", "avro"])
def test_a_text_that_could_not_be_sent_is_not_compared(encoding: str) -> None:
    options = replace(SUMMED, encoding_format=encoding)
    row = next(
        row for rows in golden_rows() for row in rows
        if row.checksum and row.is_insert and any(c.kind is Kind.STRING for c in row.table.columns)
    )  # fmt: skip
    kinds = [column.kind for column in row.table.columns]
    at = kinds.index(Kind.STRING)
    assert row.new is not None
    encoder, reader = SimpleEncoder(options), decoder(options)
    reader.decode(Batch([None], [encoder.encode_definition(row.table).value], [0]))
    for cell, bad in ((b"a\xef\xbf\xbdb", 0), (b"a", 1)):
        other = replace(row, new=(*row.new[:at], cell, *row.new[at + 1 :]))
        (message,) = encoder.encode_rows([other])
        assert len(reader.decode(Batch([None], [message.value], [0])).bad) == bad


def test_a_bit_columns_default_in_avro_may_be_no_text() -> None:
    body = json.loads(BOOTSTRAP)
    column = body["tableSchema"]["columns"][0]
    column["dataType"]["mysqlType"], column["default"] = "bit", 0xFF
    value = avro_write.message(body)
    assert versions(value) == [("s", "t", 8)]


def test_a_sum_is_of_utc_and_of_singles() -> None:
    """Whatever zone a TIMESTAMP is sent in, and however many digits a FLOAT has."""
    recorded = golden.case("random_ck_00")
    mounted = {seq: record["mounted"] for seq, record in recorded.records.items()}
    moved = [seq for seq, one in mounted.items() if one.get("checksum") and one.get("zones")]
    twice = 0
    for zone in ("UTC", "Asia/Shanghai", "America/New_York"):
        for encoding in ("json", "avro"):
            options = replace(SUMMED, time_zone=zone, encoding_format=encoding)
            encoder, reader, plain = SimpleEncoder(options), decoder(options), SimpleDecoder(options)
            for seq in moved:
                # TiCDC mounts no row whose TIMESTAMP would be before 1970 in the zone.
                if zone != "UTC" and zone not in mounted[seq]["zones"]:
                    continue
                row = recorded.row(seq, zone)
                twice += any("2021-11-07 01:30" in str(cell) for cell in row.new or ())
                messages = [encoder.encode_definition(row.table), *encoder.encode_rows([row])]
                batch = Batch([None] * 2, [message.value for message in messages], range(2))
                # Once more, with a shape that is known.
                assert [one.decode(batch).bad for one in (plain, reader, reader)] == [[], [], []]
    assert twice > 0  # the hour that New York has twice
    sums = [row for rows in golden_rows() for row in rows if row.checksum is not None]
    for row in sums:
        encoder, reader = SimpleEncoder(SUMMED), SimpleDecoder(SUMMED)
        messages = [encoder.encode_definition(row.table), *encoder.encode_rows([row])]
        assert reader.decode(Batch([None] * 2, [message.value for message in messages], range(2))).bad == []
    assert any(column.kind is Kind.FLOAT for row in sums for column in row.table.columns)


def test_the_halves_of_a_split_update_have_a_sum_each() -> None:
    row = next(row for rows in golden_rows() for row in rows if row.checksum and row.old and row.new)
    assert row.checksum is not None
    for half, sums in (
        (replace(row, new=None), (0, row.checksum.previous)),
        (replace(row, old=None), (row.checksum.current, 0)),
    ):
        (message,) = SimpleEncoder(SUMMED).encode_rows([half])
        stated = json.loads(message.value or b"")["checksum"]
        assert (stated["current"], stated["previous"]) == sums


def test_timestamps_are_taken_in_the_readers_zone_only() -> None:
    assert "give the reader the changefeed's time zone" in why(BOOTSTRAP, ROW, zone="Asia/Shanghai")
    assert decoded(BOOTSTRAP, ROW.replace(b'"UTC"', b'"Asia/Shanghai"'), zone="Asia/Shanghai").bad == []


def test_a_ddl_without_our_header_is_named_by_its_definition() -> None:
    body = BOOTSTRAP.replace(b'"BOOTSTRAP","commitTs":0', b'"ERASE","sql":"drop table t","commitTs":9')
    (ddl,) = decoded(body).ddls
    assert (ddl.ts, ddl.action, ddl.schema, ddl.table, ddl.query) == (9, 4, "s", "t", "drop table t")


class OnlyDefinitions:
    """A plain decoder for definitions only: the compiled decoder must not ask it for a row."""

    def __init__(self, plain: SimpleDecoder) -> None:
        self.plain, self.asked = plain, 0

    def decode(self, batch: Batch) -> Decoded:
        found = self.plain.decode(batch)
        assert found == Decoded()
        self.asked += len(batch)
        return found


@pytest.mark.parametrize("name", ["simple_avro", "simple_avro_checksum"])
def test_ticdcs_avro_rows_in_any_order_of_their_members_are_read_in_bulk(name: str) -> None:
    groups: dict[int, tuple[TableSchema, list[bytes]]] = {}
    for record in golden.lines(f"messages/{name}"):
        if record["kind"] == "row":
            table = golden.case(record["case"]).row(record["seq"]).table
            groups.setdefault(id(table), (table, []))[1].append(bytes.fromhex(record["value"]))
    taken = 0
    for table, values in groups.values():
        stated = SimpleEncoder(OPTIONS).encode_definition(table).value
        batch = Batch([None] * (len(values) + 1), [*values, stated], range(len(values) + 1))
        plain = SimpleDecoder(OPTIONS)
        reader = SimpleBulkDecoder(plain, OnlyDefinitions(plain))
        assert repr(describe(reader.decode(batch))) == repr(describe(SimpleDecoder(OPTIONS).decode(batch)))
        taken += len(values)
    assert taken > 300


def test_an_old_image_in_avro_that_leaves_columns_out_is_filled_in_bulk() -> None:
    row = next(
        row for rows in golden_rows() for row in rows
        if row.old and row.new and len(row.table.columns) > 3 and row.new[1:] != row.old[1:]
    )  # fmt: skip
    table, every = row.table, range(len(row.table.columns))
    whole = avro_write.row(
        row, 1, version_of(table.info, table.version), every, "UTC", summed=False, bits=avro_write.LONG
    )
    assert row.old is not None
    value = whole.removesuffix(avro_write.image(table, row.old, every, "UTC", avro_write.LONG))
    value += avro_write.image(table, row.old, [1], "UTC", avro_write.LONG)
    stated = SimpleEncoder(OPTIONS).encode_definition(table).value
    plain = SimpleDecoder(OPTIONS)
    batch = Batch([None] * 2, [stated, value], range(2))
    (found,) = describe(SimpleBulkDecoder(plain, OnlyDefinitions(plain)).decode(batch))
    assert [found] == describe(SimpleDecoder(OPTIONS).decode(batch))
    name = table.columns[1].name
    assert found["old"] == found["new"] | {name: found["old"][name]}


AVRO = [
    bytes.fromhex(record["value"]) for record in golden.lines("messages/simple_avro") if "value" in record
]


@given(st.sampled_from(AVRO[::40]), st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_avro_gives_rows_or_a_reason(value: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(1, len(value) - 1))
    hostile = data.draw(st.sampled_from([b"", b"\x00", b"\xff" * 9 + b"\x01", b"\xfe\xff\xff\xff\x0f"]))
    found = SimpleDecoder(OPTIONS).decode(Batch([None], [value[:at] + hostile + value[at + 1 :]], [0]))
    assert len(found.bad) + len(found.rows) + len(found.ddls) + len(found.resolved) <= 1
    assert all(bad.why for bad in found.bad)


def test_every_avro_ddl_and_definition_is_the_json_one() -> None:
    pairs = zip(golden.lines("messages/simple_avro"), golden.lines("messages/simple_json"), strict=True)
    compared = 0
    for packed, json_one in pairs:
        if packed["kind"] == "ddl":
            values = [bytes.fromhex(record["value"]) for record in (packed, json_one)]
            assert versions(values[0]) == versions(values[1])
            assert may_define(values[0])
            first, second = (describe(SimpleDecoder(OPTIONS).decode(Batch([None], [v], [0]))) for v in values)
            assert first == second
            compared += 1
    assert compared > 400


# --- writing, and what is refused


def test_json_may_be_asked_for_by_name() -> None:
    uri = parse_sink_uri("kafka://here:9092/topic?protocol=simple&encoding-format=json")
    assert canonical(merge_config({}, uri)).sink.protocol == "simple"
    assert codec_options({"protocol": "simple", "encoding-format": "json"}) == OPTIONS


def test_definitions_go_once_to_each_partition_that_has_rows() -> None:
    row = golden.case("types_timestamps").row(0)
    stated = {2}
    block = definition_block(row.table, np.array([4, 1, 2, 4], dtype=np.int32), OPTIONS, 9, stated)
    assert block is not None
    assert block.partition.tolist() == [1, 4]
    assert block.rows.tolist() == [0, 0]
    assert (block.key_length == -1).all()
    assert block.data.tobytes() == ENCODER.encode_definition(row.table, 9).value
    assert stated == {1, 2, 4}
    assert definition_block(row.table, np.array([1], dtype=np.int32), OPTIONS, 9, stated) is None
    with pytest.raises(InvalidInput, match="definition of a table is larger") as raised:
        definition_block(
            row.table, np.zeros(1, dtype=np.int32), SimpleOptions(max_message_bytes=1024), 9, set()
        )
    assert "raise max-message-bytes" in raised.value.fix


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("encoding-format=xml", "simple is not written in it"),
        ("large-message-handle-option=claim-check", "large-message-handle-option"),
        ("enable-tidb-extension=true", "simple has no such option"),
    ],
)
def test_what_is_not_carried_out_is_refused_at_create(option: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        canonical(merge_config({}, parse_sink_uri(f"kafka://here:9092/topic?protocol=simple&{option}")))


def test_a_redefined_version_changes_how_its_rows_are_decoded_at_once() -> None:
    """Seen by fuzzing: the compiled decoder kept what it had learned from the first definition."""
    options = codec_options({"protocol": "simple"})
    row = next(row for rows in golden_rows() for row in rows if row.is_insert and len(row.table.columns) > 2)
    codec = codec_of(options)
    assert codec.definitions is not None
    stated = codec.definitions.encode(row.table, options, 0).value
    (sent,) = codec.encoder(options).encode_rows([row])
    assert stated is not None
    name = row.table.columns[-1].name.encode()
    otherwise = stated.replace(b'"name":"%s"' % name, b'"name":"%s_"' % name)
    assert otherwise != stated
    fast, twin = decoder(options), codec.decoder(options)
    for values in (
        [stated],
        [sent.value],
        [sent.value],
        [sent.value, otherwise],
        [sent.value],
        [stated, sent.value],
    ):
        batch = Batch([None] * len(values), values, range(len(values)))
        assert describe(fast.decode(batch)) == describe(twin.decode(batch))


def test_a_version_that_is_sent_again_is_the_same_version() -> None:
    """Producers repeat definitions; what was learned of a version's rows must hold on."""
    options = codec_options({"protocol": "simple"})
    row = next(row for rows in golden_rows() for row in rows if row.is_insert)
    codec, twin = codec_of(options), SimpleDecoder(SimpleOptions())
    assert codec.definitions is not None
    stated = codec.definitions.encode(row.table, options, 0).value
    (sent,) = codec.encoder(options).encode_rows([row])
    for values in ([stated], [sent.value], [stated], [sent.value, stated]):
        twin.decode(Batch([None] * len(values), values, range(len(values))))
    assert twin.redefined == 0


def test_rows_of_a_definition_without_columns_are_set_aside_in_avro_too() -> None:
    row = next(row for rows in golden_rows() for row in rows if row.is_insert)
    body = json.loads(BOOTSTRAP)
    names = {"schema": row.table.schema, "table": row.table.table, "tableID": row.physical_id}
    body["tableSchema"] |= names | {"columns": [], "indexes": []}
    value = avro_write.row(
        row, 0, body["tableSchema"]["version"], [], "UTC", summed=False, bits=avro_write.LONG
    )
    empty = value[:-2] + b"\x00"  # a map of nothing has no block before its end
    assert "are not there" in why(avro_write.message(body), empty)
