"""The compiled wire scan against protobuf's own parser, and against hostile bytes at the edge of memory."""

from __future__ import annotations

import ctypes
import mmap
import re
import types
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidegate.kernel import address
from tidegate.proto import cdcpb_pb2 as cdcpb
from tidegate.puller.match import scan_kernels
from tidegate.puller.match import table_kernels as k
from tidegate.puller.match.scan_kernels import scan as scan_kernel

numbers = st.one_of(st.integers(0, 300), st.integers(0, (1 << 64) - 1))
small = st.binary(max_size=40)
rows = st.builds(
    cdcpb.Event.Row,
    start_ts=numbers,
    commit_ts=numbers,
    type=st.integers(0, 5),
    op_type=st.integers(0, 2),
    key=small,
    value=small,
    old_value=small,
    txn_source=numbers,
    generation=numbers,
)
entries = st.builds(cdcpb.Event.Entries, entries=st.lists(rows, max_size=5))
errors = st.builds(cdcpb.Error, congested=st.builds(cdcpb.Congested, region_id=numbers))
events = st.one_of(
    st.builds(cdcpb.Event, region_id=numbers, request_id=numbers, index=numbers, entries=entries),
    st.builds(cdcpb.Event, region_id=numbers, request_id=numbers, error=errors),
    st.builds(cdcpb.Event, region_id=numbers, request_id=numbers, resolved_ts=numbers),
    st.builds(cdcpb.Event, region_id=numbers, request_id=numbers, admin=st.builds(cdcpb.Event.Admin)),
)
resolved = st.builds(cdcpb.ResolvedTs, regions=st.lists(numbers, max_size=6), ts=numbers, request_id=numbers)
messages = st.one_of(
    st.builds(cdcpb.ChangeDataEvent, events=st.lists(events, max_size=4)),
    st.builds(cdcpb.ChangeDataEvent, resolved_ts=resolved),
)


class GuardedPage:
    """Bytes that end where readable memory ends: one byte too far is a crash."""

    def __init__(self, pages: int = 4) -> None:
        self._size = pages * mmap.PAGESIZE
        self._map = mmap.mmap(-1, self._size + mmap.PAGESIZE)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        guard = ctypes.c_void_p(self._base + self._size)
        assert libc.mprotect(guard, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0

    def put(self, data: bytes) -> int:
        """Place the bytes; their address."""
        at = self._size - len(data)
        self._map[at : self._size] = data
        return self._base + at


GUARDED = GuardedPage()


def scan(data: bytes) -> tuple[int, np.ndarray, np.ndarray]:
    event_table = np.zeros((200, k.EVENT_WORDS), dtype=np.uint64)
    row_table = np.zeros((400, k.ROW_WORDS), dtype=np.uint64)
    counts = np.zeros(3, dtype=np.int64)
    places = np.array([[GUARDED.put(data), len(data)]], dtype=np.int64)
    tables = scan_kernels.ScanTables(address(event_table), 200, address(row_table), 400)
    state = scan_kernel(places, tables, address(counts))
    return state, event_table[: counts[0]], row_table[: counts[1]]


def plain(message: cdcpb.ChangeDataEvent) -> list[object]:
    """Return the expected result of the scan, by protobuf."""
    found: list[object] = []
    for event in message.events:
        kind = event.WhichOneof("event")
        head = (event.region_id, event.request_id)
        if kind == "entries":
            found.append((*head, [plain_row(r) for r in event.entries.entries]))
        elif kind == "resolved_ts":
            found.append((*head, "resolved", event.resolved_ts))
        elif kind == "error":
            found.append((*head, "error", event.error.SerializeToString(deterministic=True)))
        else:
            found.append((*head, "other"))
    if message.HasField("resolved_ts"):
        r = message.resolved_ts
        found.append(("many", r.request_id, r.ts, list(r.regions)))
    return found


def plain_row(row: cdcpb.Event.Row) -> tuple[object, ...]:
    kinds = row.type & 0xFFFFFFFF, row.op_type & 0xFFFFFFFF
    return row.start_ts, row.commit_ts, *kinds, row.key, row.value, row.old_value, row.generation


def compiled(event_table: np.ndarray, row_table: np.ndarray) -> list[object]:
    """Return the result of the scan."""
    found: list[object] = []
    for kind, region, request, first, end, ts, size, _ in event_table.tolist():
        if kind == k.ROWS:
            found.append((region, request, [compiled_row(r) for r in row_table[first:end].tolist()]))
        elif kind == k.RESOLVED:
            found.append((region, request, "resolved", ts))
        elif kind == k.ERROR:
            event = cdcpb.Event.FromString(ctypes.string_at(first, size))
            found.append((region, request, "error", event.error.SerializeToString(deterministic=True)))
        elif kind == k.RESOLVED_MANY:
            r = cdcpb.ResolvedTs.FromString(ctypes.string_at(first, size))
            found.append(("many", request, ts, list(r.regions)))
        else:
            found.append((region, request, "other"))
    return found


def compiled_row(row: list[int]) -> tuple[object, ...]:
    parts = [
        ctypes.string_at(row[k.KEY + i], row[k.KEY_SIZE + i]) if row[k.KEY_SIZE + i] else b""
        for i in range(3)
    ]
    return row[k.START], row[k.COMMIT], row[k.KIND], row[k.OP], *parts, row[k.GENERATION]


@settings(max_examples=300, deadline=None)
@given(messages)
def test_well_formed_messages_are_scanned_as_protobuf_reads_them(message: cdcpb.ChangeDataEvent) -> None:
    state, event_table, row_table = scan(message.SerializeToString())
    assert state == k.GOOD
    assert compiled(event_table, row_table) == plain(message)


def parts(data: bytes, number: int, wire: int = scan_kernels.BYTES) -> list[Any]:
    """The values of a message's field as they stand, whatever they mean."""
    fields = UnknownFieldSet(cdcpb.Event.Admin.FromString(data))  # a message that knows no fields
    return [it.data for it in fields if (it.field_number, it.wire_type) == (number, wire)]


def has_expiry(data: bytes) -> bool:
    """Whether a row has one."""
    rows_of = (
        cdcpb.ChangeDataEvent.EVENTS_FIELD_NUMBER,
        cdcpb.Event.ENTRIES_FIELD_NUMBER,
        cdcpb.Event.Entries.ENTRIES_FIELD_NUMBER,
    )
    found = [data]
    for number in rows_of:
        found = [part for each in found for part in parts(each, number)]
    expiry = cdcpb.Event.Row.EXPIRE_TS_UNIX_SECS_FIELD_NUMBER
    return any(parts(row, expiry, scan_kernels.VARINT) for row in found)


SKIPPED_TAGS = {
    cdcpb.Event.DESCRIPTOR.fields_by_name[name].number << 3 | scan_kernels.BYTES
    for name in ("error", "admin", "long_txn")
}
"""Messages in an event that the scan skips over: who reads one parses it."""
OVERLONG = re.compile(rb"[\x80-\xff]{5}\x80*\x00")
"""A number in more bytes than protobuf takes for a tag or a size; the scan takes what 64 bits may need."""


@settings(max_examples=600, deadline=None)
@given(messages, st.data())
def test_damaged_messages_are_flagged_or_read_as_protobuf_reads_them(
    message: cdcpb.ChangeDataEvent, data: st.DataObject
) -> None:
    """Nothing beyond the message is read."""
    raw = bytearray(message.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        if not raw:
            break
        at = data.draw(st.integers(0, len(raw) - 1))
        match data.draw(st.integers(0, 2)):
            case 0:
                raw[at] = data.draw(st.integers(0, 255))
            case 1:
                del raw[at:]
            case 2:
                raw[at:at] = data.draw(st.binary(min_size=1, max_size=4))
    state, event_table, row_table = scan(bytes(raw))
    try:
        parsed = cdcpb.ChangeDataEvent.FromString(bytes(raw))
    except DecodeError:
        # The damage may have made a tag of any other, in more bytes than it needs.
        may_skip = any(byte & 0x7F in SKIPPED_TAGS for byte in raw)
        assert state == k.BAD or may_skip or OVERLONG.search(raw)
        return
    if has_expiry(bytes(raw)):
        return  # the scan gives it in the place of the old value, which no row of TiKV has besides
    if state == k.GOOD and len(parsed.events) + parsed.HasField("resolved_ts") == len(event_table):
        simple = [e for e in plain(parsed) if "error" not in e and e[0] != "many"]  # type: ignore[operator,index]
        found = [e for e in compiled(event_table, row_table) if "error" not in e and e[0] != "many"]  # type: ignore[operator,index]
        assert found == simple


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_do_no_harm(raw: bytes) -> None:
    state, event_table, row_table = scan(raw)
    assert state in (k.GOOD, k.BAD)
    if state == k.GOOD:
        assert len(row_table) + len(event_table) <= len(raw)


def test_more_rows_than_the_table_holds_are_reported_not_written() -> None:
    message = cdcpb.ChangeDataEvent()
    event = message.events.add()
    for _ in range(401):
        event.entries.entries.add(key=b"k")
    assert scan(message.SerializeToString())[0] == k.FULL


class Interpreted:
    """The scan run as plain Python over one message: each load is compared with the message's bounds.

    The compiler may drop a load from address 0, or move it, so that a wrong order need not show in what it
    made today.
    """

    BASE = 1 << 20

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.outside: list[tuple[int, int]] = []
        self.words: dict[Any, int] = {}
        own = {name: self._plain(it) for name, it in vars(scan_kernels).items() if hasattr(it, "py_func")}
        for it in own.values():
            if it.__module__ == scan_kernels.__name__:
                it.__globals__.update(own | self._memory())

    def run(self) -> int:
        with np.errstate(over="ignore"):
            places = np.array([[self.BASE, len(self._data)]], dtype=np.int64)
            return int(self._scan(places, scan_kernels.ScanTables(0, 200, 0, 400), 0))

    def _plain(self, compiled: Any) -> Any:
        function = compiled.py_func
        own_globals = dict(function.__globals__)
        made = types.FunctionType(
            function.__code__, own_globals, function.__name__, closure=function.__closure__
        )
        made.__module__ = function.__module__
        if function.__name__ == "scan":
            self._scan = made
        return made

    def _memory(self) -> dict[str, Any]:
        def word(table: Any, n: Any, which: Any) -> Any:
            return np.uint64(self.words.get((int(table), int(n), int(which)), 0))

        def put_word(table: Any, n: Any, which: Any, value: Any) -> None:
            self.words[int(table), int(n), int(which)] = int(value)

        return {
            "load_u8": lambda at: np.uint8(self._load(at, 1)),
            "load_u64": lambda at: np.uint64(self._load(at, 8)),
            "prefetch": lambda at: None,
            "cttz64": lambda word: np.uint64((int(word) & -int(word)).bit_length() - 1),
            "i64": int,
            "row_word": word,
            "event_word": word,
            "put_row_word": put_word,
            "put_event_word": put_word,
            "put_int": lambda at, n, value: None,
            "row_hash": lambda start, key, size: np.uint64(0),
        }

    def _load(self, at: int, size: int) -> int:
        first = int(at) - self.BASE
        if first < 0 or first + size > len(self._data):
            self.outside.append((first, size))
        return int.from_bytes(self._data[max(first, 0) : max(first + size, 0)].ljust(size, b"\0"), "little")


def event_of(row: bytes) -> bytes:
    """A message with one row, and bytes enough behind it for the quick way through it."""

    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    return field(1, field(3, field(1, row))) + bytes([15 << 3 | 2, 64]) + bytes(64)


@settings(max_examples=300)
@given(
    messages.map(lambda message: message.SerializeToString())
    | rows.map(lambda row: event_of(row.SerializeToString()[:100])),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
)
@example(event_of(b"\x08" + b"\xff" * 10 + b"\x10\x01"), [])
@example(event_of(b"\x08\x01\x10" + b"\xff" * 10 + b"\x18\x01"), [])
@example(event_of(b"\x08\x01\x10\x01\x2a" + b"\xff" * 10), [])
def test_no_load_is_outside_the_message_whatever_is_in_it(raw: bytes, changes: list[tuple[int, int]]) -> None:
    data = bytearray(raw)
    for at, byte in changes:
        if at < len(data):
            data[at] = byte
    twin = Interpreted(bytes(data))
    state = twin.run()
    assert twin.outside == []
    assert state == scan(bytes(data))[0]
