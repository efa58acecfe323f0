"""A machine that loses power: any file may be cut off, gone, or older than another. Nothing false is claimed.

A store runs, and all its files are kept as they were after each write. From these, states are put together
that a disk may be in afterwards, the store is opened on each, and what it claims, and what it holds once the
rest was pulled again, is compared with the source.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.eventstore.test_crash import SPAN, START, change
from tidegate.errors import Retryable
from tidegate.eventstore import damage, reader, records, segment, store, store_view
from tidegate.eventstore.floors import ENTRY_BYTES, FLOORS, FloorPage
from tidegate.eventstore.manifest import MANIFEST, ManifestFile
from tidegate.eventstore.merging import MERGE_COUNT
from tidegate.eventstore.order import Entry, block_of, entries_of
from tidegate.eventstore.store import EventStore
from tidegate.model.span import Span, span_id

ID = span_id(SPAN)
LEFT, RIGHT = Span(SPAN.start, b"key2"), Span(b"key2", SPAN.end)
"""Two regions of the span."""
BEYOND = 40
"""So many ts come after the power is back."""
Files = dict[str, bytes]


def source(after: int, upto: int) -> list[Entry]:
    """The last 20 of every 80 ts have no change: the idle span moves on the page of floors alone."""
    return [change(ts) for ts in range(after + 1, upto + 1) if ts % 80 < 60]


@dataclass
class Recording:
    """The files of a running store after each write, and the ts that readers were done with by then."""

    folder: Path
    states: list[tuple[Files, int]] = field(default_factory=list)
    needed: int = START

    def note(self) -> None:
        files = {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file() and path.name not in ("lock", store.RESERVE)
        }
        self.states.append((files, self.needed))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    found = Recording(tmp_path_factory.mktemp("running"))

    def noted(write: Callable[..., Any]) -> Callable[..., Any]:
        def writing(*given: Any) -> Any:
            made = write(*given)
            found.note()
            return made

        return writing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "write", noted(segment.write))
        patch.setattr(ManifestFile, "write", noted(ManifestFile.write))
        patch.setattr(FloorPage, "put", noted(FloorPage.put))
        patch.setattr(records, "TAIL_MIN", 500)
        live(found)
    return found


def live(recording: Recording) -> None:
    """Everything a store does: seals, idle moves, runs, ranges that are apart, merges, segments that go; and
    manifests that follow the page, and are rewritten.
    """
    generator = random.Random(11)
    running = EventStore(recording.folder, memory_bytes=4000)
    span = running.open_span(SPAN)
    span.begin(START)
    arrived = START
    for step in range(3 * MERGE_COUNT):
        fresh = source(arrived, arrived := arrived + generator.randint(2, 12))
        generator.shuffle(fresh)
        span.append(block_of(fresh))
        span._files._follow_ms = -1 if step % 4 == 0 else 1 << 60  # its ts are of one millisecond
        if generator.random() < 0.8:
            span.seal(max(span.resolved, arrived - generator.randint(0, 6)))
            running.publish()
        if step % 12 == 6:  # one region is far ahead of the other
            span.keep([(LEFT, span.resolved), (RIGHT, arrived)])
        if step % 12 == 9:
            recording.needed = span.resolved - 10
            span.drop_below(recording.needed)
    running.close()


def test_the_recording_has_all_that_a_store_does(recording: Recording) -> None:
    pages = {files.get(FLOORS) for files, _ in recording.states}
    manifests = {files.get(f"{ID}/{MANIFEST}", b"") for files, _ in recording.states}
    assert len(pages) > MERGE_COUNT
    assert len(manifests) > MERGE_COUNT
    assert len({manifest[:24] for manifest in manifests}) > 2, "bases"
    assert any(manifest.count(b'"floor"') > 4 for manifest in manifests), "tails"
    assert any(b"splice" not in manifest[-64:] and b"floor" in manifest[-64:] for manifest in manifests)
    names = {name for files, _ in recording.states for name in files if name.endswith(".arrow")}
    last = {name for name in recording.states[-1][0] if name.endswith(".arrow")}
    assert len(names) > 2 * len(last), "segments were merged and dropped"


def states(recording: Recording, rounds: int) -> Iterator[tuple[str, Files, int]]:
    """What, the files, and from where the span is needed: for each write, states it may leave behind."""
    generator = random.Random(5)
    for at, (files, needed) in enumerate(recording.states):
        yield f"write {at}", files, needed
        past = [earlier for earlier, _ in recording.states[: at + 1]]
        names = sorted({name for earlier in past for name in earlier})
        for round_ in range(rounds):
            name = generator.choice(sorted(files))
            cut = generator.choice([0, 1, len(files[name]) - 1, generator.randrange(len(files[name]))])
            yield f"write {at}, {name} cut to {cut}", {**files, name: files[name][:cut]}, needed
            name = generator.choice(sorted(files))
            older = generator.choice(past).get(name)
            yield f"write {at}, {name} is older", with_file(files, name, older), needed
            if (at + round_) % 2:  # a hole in a segment is seen when it is read: `test_corruption`
                name = generator.choice([name for name in sorted(files) if not name.endswith(".arrow")])
                holey = {**files, name: holed(files[name], generator)}
                yield f"write {at}, {name} has a hole", holey, needed
            else:
                slots = mixed_slots([f.get(FLOORS, b"") for f in past[-20:]], generator)
                yield f"write {at}, each slot of its own age", {**files, FLOORS: slots}, needed
            mixed = dict(files)
            for name in names:
                mixed = with_file(mixed, name, generator.choice(past[-8:]).get(name))
            yield f"write {at}, each file of its own age, {round_}", mixed, needed


def holed(data: bytes, generator: random.Random) -> bytes:
    """Return data of the same length of which some part, mostly the last, never came to the disk."""
    low = generator.randrange(len(data))
    high = len(data) if generator.random() < 0.7 else generator.randrange(low, len(data))
    return data[:low] + bytes(high - low) + data[high:]


def mixed_slots(pages: list[bytes], generator: random.Random) -> bytes:
    """Words of a page that were written to disk each at its own time, so that most slots are torn."""
    size = max(len(page) for page in pages)
    pages = [page.ljust(size, b"\0") for page in pages]
    words = [generator.choice(pages)[i : i + 8] for i in range(0, 8 * ENTRY_BYTES, 8)]
    return b"".join(words) + pages[-1][8 * ENTRY_BYTES :] if size else b""


def with_file(files: Files, name: str, data: bytes | None) -> Files:
    others = {n: d for n, d in files.items() if n != name}
    return others if data is None else {**others, name: data}


def lay(folder: Path, files: Files) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def rows(folder: Path, after: int, upto: int) -> list[Entry]:
    return [entry for block in reader.read(folder, ID, after, upto) for entry in entries_of(block)]


def check_readers(folder: Path, needed: int) -> None:
    """Before the puller is back, a reader that follows the rules is refused, or gets the source."""
    try:
        frontier = store_view.read_frontier(folder)
        upto = frontier.get(ID, 0)
        if upto > needed:
            assert rows(folder, needed, upto) == source(needed, upto)
        manifest = store_view.read_manifest(folder, ID)
        reach = frontier.reach(ID, manifest)
        if manifest.dropped_to <= needed < reach and not store_view.pending(manifest, needed, reach)[0]:
            assert source(needed, reach) == []  # the span counts as idle
    except Retryable:
        pass  # it waits


def check_recovery(folder: Path, needed: int, last: int) -> bool:
    """Whether something was pulled again, and it was said."""
    notices: list[Retryable] = []
    again = EventStore(folder, on_pulled_again=notices.append)
    try:
        span = again.open_span(SPAN)
        span.begin(needed)
        claimed = span.resolved
        assert span.complete_from <= needed <= claimed
        assert rows(folder, needed, claimed) == source(needed, claimed), "what it claims is not there"
        for bounds, kept in span.ranges:  # as a puller would
            missing = [e for e in source(kept, last) if bounds.start <= e.key < bounds.end]
            span.append(block_of(missing))
        span.seal(last)
        again.publish()
        assert rows(folder, needed, last) == source(needed, last), "what it holds in the end"
        assert all(ID in notice.where or FLOORS in notice.where for notice in notices)
        return bool(notices)
    finally:
        again.close()


def test_whatever_a_loss_of_power_leaves_is_made_whole_from_the_source(
    recording: Recording, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder, last = tmp_path / "store", recording.states[-1][1] + 10 + 80 + BEYOND
    said = count = 0
    for what, files, needed in states(recording, request.config.getoption("--cuts")):
        lay(folder, files)
        try:
            check_readers(folder, needed)
            lost = check_recovery(folder, needed, last)
        except Exception as error:
            raise AssertionError(what) from error
        assert not lost or "," in what, f"{what}: nothing is lost when the process alone dies"
        said, count = said + lost, count + 1
    assert 0 < said < count


def test_a_manifest_older_than_its_floor_is_pulled_again_from_its_own_ts(tmp_path: Path) -> None:
    running = EventStore(tmp_path)
    span = running.open_span(SPAN)
    span.begin(START)
    span.append(block_of(source(START, START + 5)))
    span.seal(START + 5)
    manifest = (tmp_path / ID / MANIFEST).read_bytes()
    span.append(block_of(source(START + 5, START + 9)))
    span.seal(START + 9)
    running.publish()
    running.close()
    (tmp_path / ID / MANIFEST).write_bytes(manifest)
    with pytest.raises(Retryable, match="a read reached beyond the resolved ts"):
        rows(tmp_path, START, START + 9)
    notices: list[Retryable] = []
    span = EventStore(tmp_path, on_pulled_again=notices.append).open_span(SPAN)
    assert span.resolved == START + 5
    assert ID not in store_view.read_frontier(tmp_path)
    [notice] = notices
    assert ID in notice.where
    assert "older than what was published" in notice.why


def test_an_older_floor_with_a_newer_manifest_costs_nothing(tmp_path: Path) -> None:
    running = EventStore(tmp_path)
    span = running.open_span(SPAN)
    span.begin(START)
    span.append(block_of(source(START, START + 5)))
    span.seal(START + 5)
    running.publish()
    page = (tmp_path / FLOORS).read_bytes()
    span.append(block_of(source(START + 5, START + 9)))
    span.seal(START + 9)
    running.publish()
    running.close()
    (tmp_path / FLOORS).write_bytes(page)
    notices: list[Retryable] = []
    span = EventStore(tmp_path, on_pulled_again=notices.append).open_span(SPAN)
    assert (span.resolved, notices) == (START + 9, [])


def test_a_torn_manifest_of_a_running_store_is_reported_and_written_again(tmp_path: Path) -> None:
    running = EventStore(tmp_path)
    span = running.open_span(SPAN)
    span.begin(START)
    span.append(block_of(source(START, START + 5)))
    span.seal(START + 5)
    running.publish()
    path = tmp_path / ID / MANIFEST
    good = path.read_bytes()
    path.write_bytes(good[:50])
    with pytest.raises(Retryable, match="manifest of the event store is corrupt"):
        rows(tmp_path, START, START + 5)
    [report] = damage.reports(tmp_path)
    assert (report.span_id, report.file, report.lost) == (ID, MANIFEST, False)
    span.rewrite()
    assert rows(tmp_path, START, START + 5) == source(START, START + 5)
    running.close()


def test_a_damaged_last_record_of_a_running_manifest_is_written_again(
    tmp_path: Path,
) -> None:
    """It looks like an append that was cut off, but it was announced, so a reader would wait for ever."""
    running = EventStore(tmp_path)
    span = running.open_span(SPAN)
    span.begin(START)
    span.append(block_of(source(START, START + 5)))
    span.seal(START + 5)
    running.publish()
    path = tmp_path / ID / MANIFEST
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(Retryable, match="a read reached beyond the resolved ts"):
        rows(tmp_path, START, START + 5)
    assert [(report.span_id, report.file) for report in damage.reports(tmp_path)] == [(ID, MANIFEST)]
    span.rewrite()
    running.publish()
    assert rows(tmp_path, START, START + 5) == source(START, START + 5)
    running.close()
