"""Scripts of a matcher with little memory: `testdata/spill/*.txt`. Each command is a message of the stream.

    limit 1000 [no-disk]                         a stream's matcher that may hold so many bytes open
    register [a,m) checkpoint=10                 a new registration, in place of the region's last
    prewrite key=a start-ts=30 put 2000*v        and all other rows, as in `match_script`
    message                                      several rows in one message, in its body
    batch                                        several messages that are read at once: a row or `error` each
    resolved 50 [regions=1,2]                    a resolved ts, of region 1 if none is named
    error                                        the store ends the registration
    stop                                         its owner ends it
    damage at=5, damage cut=100                  another byte in the one file on disk, or fewer bytes
    close                                        the stream ends

All but `limit`, `damage` and `close` are of region 1 unless `region=2` says another. Every command shows the
changes that come out, by commit ts and key, what registrations have to say, and after a change what is on
disk. The open rows in memory are within the limit after each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.puller.match.match_script import parsed_body, row_of, rows_of, shown_change, shown_violation
from tests.puller.match.test_matcher import changes_of
from tests.puller.wire import error_message, resolved_message, rows_message
from tests.puller.words import span_of
from tests.scripts import Command
from tidegate.proto import cdcpb_pb2 as cdcpb
from tidegate.puller.match.block_matcher import BlockMatcher
from tidegate.puller.match.budget import StreamMemory
from tidegate.puller.match.matched import Matched, Note, Registration
from tidegate.puller.match.matcher import Change
from tidegate.puller.match.spill import bytes_by_registration

_REQUEST = 7


class SpillScript:
    """A stream's matcher, and its files in a folder below `place`."""

    def __init__(self, place: Path) -> None:
        self._place = self._folder = place
        self._limit = self._matchers = 0
        self._matcher = BlockMatcher()
        self._held: dict[int, Registration] = {}
        """By region."""
        self._on_disk: list[int] = []
        """Regions, as it was shown last."""

    def run(self, command: Command) -> str:
        """Do one command; what it shows."""
        region = command.number("region", 1)
        match command.name, command.words:
            case "limit", (limit, *options):
                self._begin(int(limit), on_disk=options != ["no-disk"])
            case "register", (bounds,):
                span, checkpoint = span_of(bounds), command.number("checkpoint")
                self._held[region] = self._matcher.register(_REQUEST, region, 0, region, span, checkpoint)
            case "resolved", (ts,):
                regions = [int(one) for one in command.options.get("regions", "1").split(",")]
                return self._fed(resolved_message(regions, _REQUEST, int(ts)))
            case "error", ():
                return self._fed(_error(region))
            case "batch", ():
                return self._fed(*(self._message(region, one) for one in parsed_body(command)))
            case "message", ():
                return self._fed(rows_message(region, _REQUEST, rows_of(command)))
            case "stop", ():
                ts = self._matcher.stop(self._held[region])
                return "\n".join([f"region {region}: stopped at {ts}", *self._files()])
            case "damage", ():
                self._damage(command)
            case "close", ():
                self._matcher.close()
            case _:
                return self._fed(rows_message(region, _REQUEST, [row_of(command)]))
        return "\n".join(self._files())

    def _begin(self, limit: int, *, on_disk: bool) -> None:
        self._matcher.close()
        self._matchers += 1
        self._limit, self._folder = limit, self._place / str(self._matchers)
        self._matcher = BlockMatcher(StreamMemory(limit), self._folder if on_disk else None)
        self._held, self._on_disk = {}, []

    def _damage(self, command: Command) -> None:
        [path] = self._folder.iterdir()
        data = bytearray(path.read_bytes())
        if "cut" in command.options:
            del data[-command.number("cut") :]
        else:
            data[command.number("at")] ^= 1
        path.write_bytes(data)

    @staticmethod
    def _message(region: int, one: Command) -> bytes:
        return _error(region) if one.name == "error" else rows_message(region, _REQUEST, [row_of(one)])

    def _fed(self, *messages: bytes) -> str:
        """Return the result of messages that are read at once, as a stream's worker takes them."""
        matched = self._matcher.feed(messages)
        self._matcher.relieve()
        assert self._matcher.open_bytes <= self._limit
        return "\n".join([*_shown([matched, *self._matcher.join()]), *self._files()])

    def _files(self) -> Iterator[str]:
        logs = bytes_by_registration(self._folder)
        regions = sorted(region for region, held in self._held.items() if held.number in logs)
        files = list(self._folder.iterdir()) if self._folder.exists() else []
        assert len(files) == len(logs) == len(regions), "each has a file, and nobody else"
        if regions != self._on_disk:
            self._on_disk = regions
            yield "on disk: " + (", ".join(f"region {one}" for one in regions) or "nothing")


def _error(region: int) -> bytes:
    return error_message(region, _REQUEST, cdcpb.Error(congested=cdcpb.Congested(region_id=region)))


def _shown(every: Iterable[Matched]) -> Iterator[str]:
    """All that came out; a resolved ts behind the changes that came before it."""
    changes: list[Change] = []
    for matched in every:
        changes += changes_of(matched)[0]
        if matched.notes or len(matched.marks):
            yield from _in_order(changes)
            changes.clear()
            yield from map(_said, matched.notes)
            for region, ts in sorted(zip(matched.marks.tolist(), matched.resolved.tolist(), strict=True)):
                yield f"region {region}: resolved ts {ts}"
    yield from _in_order(changes)


def _in_order(changes: list[Change]) -> Iterator[str]:
    """Passes over a log take its keys in an order that nobody may rely on."""
    return map(shown_change, sorted(changes, key=lambda change: (change.commit_ts, change.key)))


def _said(note: Note) -> str:
    words = str(note.happening)
    if note.violation is not None:
        words = shown_violation(note.violation, note.commit_ts)
    return f"region {note.registration.region_id}: {words}"
