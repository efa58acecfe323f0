"""The change log target: recorded logs into it and back, its files, and what upkeep removes."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.consumer import plain_log
from tests.consumer.each_target import SCHEMA, AtParquet, FilesLife, Killed
from tests.consumer.logs import bank_topic, differences, snapshots
from tests.consumer.memory_topic import consume_into
from tests.consumer.story import STORY, do, done_at, resume
from tidegate.codec.base import WireColumn
from tidegate.codec.registry import reader_of
from tidegate.consumer.applying.apply import Applier, Sizes
from tidegate.consumer.applying.net_effect import BagEffect
from tidegate.consumer.applying.target import TableChanges
from tidegate.consumer.ddl.ddl_steps import Create
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.engine.watermark import Mode
from tidegate.consumer.lakehouse.thinning import HOUR_MS
from tidegate.consumer.lakehouse.upkeep import GRACE_S, Upkeep
from tidegate.consumer.parquet.address import LogAddress, LogBucketAddress
from tidegate.consumer.parquet.manifests import ChangeFile, ManifestChain
from tidegate.consumer.parquet.reading import open_log
from tidegate.consumer.parquet.target import LogTarget
from tidegate.consumer.settings import Settings, topic_of
from tidegate.consumer.snapshots import open_snapshot
from tidegate.consumer.table.definition import guess
from tidegate.consumer.targets import DatabaseSettings, address_of
from tidegate.errors import Fenced, InvalidInput
from tidegate.model.timestamp import LOGICAL_BITS
from tidegate.sink.lakehouse.store import DiskStore
from tidegate.sink.reader.changes import COMMIT_TS

NAMED = DatabaseSettings("shop")
FIRST, SECOND = 3, 7
"""Steps of the story up to its first and its second commit."""
LAST = 8
"""The snapshot up to which the shorter tests read the recorded log."""


class SharedStore(DiskStore):
    """A directory that several processes may write, as they may write a bucket."""

    shared = True


def into(
    root: Path, protocol: str, sizes: Sizes | None = None, mode: Mode = Mode.TRANSACTION, last: int = LAST
) -> None:
    """The recorded bank log up to one of its snapshots, consumed into a change log."""
    topic, target = bank_topic(protocol, last), LogTarget(DiskStore(root))
    trust = not reader_of(topic.options).lacks_old(topic.options)
    applier = Applier(target, root / "_tidegate", trust_inserts=trust, sizes=sizes)
    consume_into(topic, applier, root.parent / "staging", mode=mode, rows=300)
    target.close()


def check_all(root: Path, last: int = LAST) -> None:
    """A reader that follows the log has the tables as SQL saw them, at each moment at which SQL looked."""
    lines = snapshots()[: last + 1]
    for line, found in zip(lines, plain_log.replays(root, *(line.ts for line in lines)), strict=True):
        held = found
        assert differences(root, line, lambda target, at: held) == {}  # noqa: B023


@pytest.mark.slow
def test_a_recorded_log_gives_back_each_state_that_sql_saw(tmp_path: Path) -> None:
    into(tmp_path / "log", "open-protocol", last=len(snapshots()) - 1)
    check_all(tmp_path / "log", len(snapshots()) - 1)
    assert plain_log.ops(tmp_path / "log") == {"insert", "update", "before", "delete"}


@pytest.mark.parametrize(
    ("protocol", "mode"), [("canal-json", Mode.TRANSACTION), ("open-protocol", Mode.ROW)]
)
def test_another_protocol_and_row_mode_give_back_the_same(tmp_path: Path, protocol: str, mode: Mode) -> None:
    into(tmp_path / "log", protocol, mode=mode)
    check_all(tmp_path / "log")


def test_steps_that_do_not_fit_into_memory_give_the_same_log(tmp_path: Path) -> None:
    whole, parted = tmp_path / "whole" / "log", tmp_path / "parted" / "log"
    into(whole, "open-protocol")
    into(parted, "open-protocol", Sizes(step=1 << 14, part=1 << 12))
    assert sorted(map(repr, plain_log.rows(parted))) == sorted(map(repr, plain_log.rows(whole)))
    assert len(list(parted.glob("*/*/*.parquet"))) > len(list(whole.glob("*/*/*.parquet")))


def test_a_reader_follows_the_log_with_the_helper(tmp_path: Path) -> None:
    place = AtParquet(tmp_path / "log")
    with pytest.raises(InvalidInput, match="there is no change log"):
        open_log(place.root)
    with place.address().opened() as target:
        resume(target, FIRST)
        first = open_log(f"parquet://{place.root}")
        resume_from(target, FIRST)
    later = open_log(place.root, after=first.number)
    whole = open_log(place.root)
    assert first.entries + later.entries == whole.entries
    assert [file.path for file in whole.files("contract.seats")] == [
        entry["file"]
        for entry in plain_log.entries(place.root)
        if entry["table"] == "seats" and "file" in entry
    ]
    assert [ddl.table for ddl in whole.ddls] == ["log", "seats", "money", "money", "cash", "seats", "log"]
    (file,) = first.files("contract.log")
    assert first.read(file).num_rows == file.rows == 3
    assert pq.read_table(whole.uri(file)).equals(whole.read(file))
    assert whole.ts == later.ts == place.address().look().position.ts  # type: ignore[union-attr]
    assert open_log(place.root, after=whole.number).entries == ()


def resume_from(target: object, done: int, until: int = len(STORY)) -> None:
    for number in range(done, until):
        do(target, number)  # type: ignore[arg-type]


def test_a_file_has_one_schema_and_names_its_version(tmp_path: Path) -> None:
    place = AtParquet(tmp_path / "log")
    with place.address().opened() as target:
        resume(target)
    files = [e for e in plain_log.entries(place.root) if "file" in e and e["table"] in ("money", "cash")]
    by_version = {file["version"]: pq.read_schema(place.root / file["file"]).names[3:] for file in files}
    assert list(by_version.values()) == [
        ["id", "balance"],
        ["id", "balance", "note"],
        ["id", "balance", "note"],
    ]
    (altered,) = [
        step for e in plain_log.entries(place.root) for step in e.get("steps", ()) if step["do"] == "columns"
    ]
    assert altered["columns"][-1] == {"name": "note", "type": "int32", "from": None, "fill": "7"}


def left(root: Path) -> set[str]:
    """The files that no manifest names."""
    named = {entry["file"] for entry in plain_log.entries(root) if "file" in entry}
    return {file.relative_to(root).as_posix() for file in root.glob(f"{SCHEMA}/*/*")} - named


def tidied(target: object) -> None:
    assert isinstance(target, LogTarget)
    position = LogAddress(target.store.root).look().position  # type: ignore[attr-defined]
    while not target.tidy(position):
        pass


def test_what_a_crash_leaves_is_removed_and_nothing_else(tmp_path: Path) -> None:
    place = AtParquet(tmp_path / "log")
    for _ in range(2):
        with place.address().opened() as target:
            resume(target, SECOND - 1)  # seats, money and more rows of log, all without a commit
    torn = place.root / SCHEMA / "log" / next(iter(left(place.root))).split("/")[-1].replace("parquet", "new")
    torn.write_bytes(b"half a file")
    photo = place.root / SCHEMA / "log" / "photo.jpg"
    photo.write_bytes(b"not to be lost")
    before = left(place.root)
    assert len(before) == 2 * 3 + 2
    with place.address().opened() as target:
        resume(target, SECOND - 1)
        mine = left(place.root) - before
        tidied(target)
        assert left(place.root) == mine | {f"{SCHEMA}/log/photo.jpg"}, "its own are still to be named"
        resume_from(target, SECOND - 1)
        tidied(target)
        assert left(place.root) == {f"{SCHEMA}/log/photo.jpg"}
    newest = ManifestChain(DiskStore(place.root)).find()
    assert newest is not None
    assert newest.state.clean == newest.number - 3, "up to its takeover; the next process begins there"
    photo.unlink()
    assert place.seen() == {"cash": [(1, 200, 7)], "seats": [(1, "y")]}


def test_a_replaced_writer_removes_no_file_of_its_successor(tmp_path: Path) -> None:
    store = SharedStore(tmp_path / "log")
    old, new = LogTarget(store, consumer="one"), LogTarget(store, consumer="one")
    resume(old, FIRST)
    names, began = store.names, []

    def replaced(folder: str, after: str = "") -> list[str]:
        if folder.startswith(SCHEMA) and not began:
            began.append(1)
            resume(new, SECOND - 1)
        return names(folder, after)

    store.names = replaced  # type: ignore[method-assign]
    with pytest.raises(Fenced):
        tidied(old)
    resume_from(new, SECOND - 1)
    assert done_at(LogTarget(store, consumer="one").recover()) == len(STORY)
    assert plain_log.newest(store.root)["contract.seats"] == [(1, "y")]
    for target in (old, new):
        target.close()


def test_a_dropped_table_can_be_restored_after_a_restart(tmp_path: Path) -> None:
    place = AtParquet(tmp_path / "log")
    with place.address().opened() as target:
        resume(target)
    with place.address().opened() as target:
        target.recover()
        assert set(target.dropped()) == {81, 83}, "seats was truncated, log dropped"


def test_addresses_of_change_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upkeep = Upkeep()
    assert address_of(f"parquet://{tmp_path}", upkeep, NAMED) == LogAddress(tmp_path, upkeep)
    bucket = address_of("parquet+s3://lake/log?endpoint=http://127.0.0.1:1", upkeep, NAMED)
    assert isinstance(bucket, LogBucketAddress)
    assert str(bucket) == "s3://lake/log as a change log"
    with pytest.raises(InvalidInput, match="needs a name"):
        address_of("parquet+s3://lake/log", upkeep, DatabaseSettings())
    for wrong in ("parquet://log", "parquet:/log", "parquet+s3://lake"):
        with pytest.raises(InvalidInput, match=r"parquet(\+s3)?://") as refused:
            address_of(wrong, upkeep, NAMED)
        assert "delta" not in refused.value.fix
    with pytest.raises(InvalidInput, match="watermarks"):
        address_of(f"parquet://{tmp_path}", upkeep, NAMED, by_offset=True)
    with pytest.raises(InvalidInput, match=r"parquet\.reading"):
        open_snapshot(f"parquet://{tmp_path}")


def test_a_log_has_no_column_for_deleted_rows(tmp_path: Path) -> None:
    with LogAddress(tmp_path).opened() as target:
        target.recover()
        made = guess("shop", "t", [WireColumn("id", pa.int64(), 8, key=True)], 90)
        with pytest.raises(InvalidInput, match="--soft-delete is not for a change log"):
            target.execute(Create(replace(made, soft_delete="deleted_at")))


def test_for_a_log_the_whole_rows_before_changes_are_fetched(tmp_path: Path) -> None:
    """In each process that fetches: a topic is pickled for it."""
    source = "kafka://127.0.0.1:1/t?protocol=open-protocol"
    for target, whole in ((f"parquet://{tmp_path}", True), ("parquet+s3://a/b", True), (tmp_path, False)):
        topic = pickle.loads(pickle.dumps(topic_of(Settings(source, target))))
        assert topic.whole_old is whole


def test_a_target_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "_tidegate" / "snapshots").mkdir(parents=True)
    with pytest.raises(InvalidInput, match="holds something else"), LogAddress(tmp_path).opened():
        pass


def test_upkeep_keeps_the_number_of_manifests_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.consumer.parquet.manifests.MERGED", (2, 4))
    monkeypatch.setattr("tidegate.consumer.parquet.upkeep.GRACE_S", -1.0)
    place = AtParquet(tmp_path / "log")
    for _ in range(5):
        with place.address().opened() as target:
            resume(target)
            tidied(target)
    before = plain_log.commits(place.root)
    assert sum(not commit.get("begins") for commit in before) == 4
    files = list((place.root / "_tidegate" / "changes").iterdir())
    assert len(files) == 5 + 2, "five takeovers, one of them the newest, and two merged ones"


def filled(target: LogTarget, commits: int, begin: int = 1) -> None:
    """Commit rows of one table, an hour apart."""
    made = guess("shop", "t", [WireColumn("id", pa.int64(), 8, key=True)], 90)
    if target.definition(("shop", "t")) is None:
        target.execute(Create(made))
    for number in range(begin, begin + commits):
        rows = pa.table(
            {"_tidegate_op": ["insert"], COMMIT_TS: [number], "_tidegate_seq": [number], "id": [number]}
        )
        target.write(
            [lambda rows=rows: TableChanges(made, BagEffect(rows, [], rows.slice(0, 0)))], hour(number)
        )
        target.commit(hour(number))


def hour(number: int) -> Position:
    ts = number * HOUR_MS << LOGICAL_BITS
    return Position(ts, "t", "open-protocol", "transaction", {0: PartitionPosition(number, ts, ts)})


def ids(root: Path, after: int = 0) -> list[int]:
    log = open_log(root, after)
    files = [entry for entry in log.entries if isinstance(entry, ChangeFile)]
    return sorted(one for file in files for one in log.read(file)["id"].to_pylist())


def on_disk(root: Path) -> int:
    return len(list(root.glob("shop/t/*.parquet")))


def test_changes_are_removed_only_if_a_user_says_how_long_they_stay(tmp_path: Path) -> None:
    target = LogTarget(DiskStore(tmp_path), Upkeep(retention_hours=0))
    target.recover()
    filled(target, 9)
    tidied(target)
    filled(target, 1, 10)
    tidied(target)
    assert (ids(tmp_path), on_disk(tmp_path), open_log(tmp_path).removed) == (list(range(1, 11)), 10, 0)


@pytest.mark.parametrize("hours", [0.0, 1.0, 3.5, 100.0])
def test_changes_stay_for_the_hours_that_a_user_names(tmp_path: Path, hours: float) -> None:
    target = LogTarget(DiskStore(tmp_path), Upkeep(retention_hours=0, keep_changes_hours=hours))
    target.recover()
    filled(target, 9)
    tidied(target)
    assert ids(tmp_path) == list(range(1, 10)), "a manifest must say it first"
    filled(target, 1, 10)
    left = [number for number in range(1, 11) if number >= 9 - hours]
    assert ids(tmp_path) == left
    tidied(target)
    assert (ids(tmp_path), on_disk(tmp_path)) == (left, len(left))
    # A reader that was behind is not given a log with a gap.
    log = open_log(tmp_path)
    assert log.number == 11
    assert ids(tmp_path, 11) == []
    if log.removed > 1:
        with pytest.raises(InvalidInput, match="does not go back so far"):
            open_log(tmp_path, after=log.removed - 1)
        assert ids(tmp_path, log.removed) == left


def test_files_stay_for_readers_that_have_just_opened_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("tidegate.consumer.parquet.upkeep.time.monotonic", lambda: now[0])
    for begin in (1, 11):  # the second process waits, too: it does not know since when it is announced
        target = LogTarget(DiskStore(tmp_path), Upkeep(keep_changes_hours=2))
        target.recover()
        tidied(target)
        filled(target, 9, begin)
        tidied(target)
        filled(target, 1, begin + 9)
        tidied(target)
        now[0] += GRACE_S - 1
        tidied(target)
        assert on_disk(tmp_path) == begin + 9
        assert len(ids(tmp_path)) < 5
    now[0] += 1
    tidied(target)
    assert on_disk(tmp_path) == len(ids(tmp_path)) < 5


def test_a_shortened_log_survives_death_at_every_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No reader ever misses a change that is not removed, or looks for a file that is gone."""
    monkeypatch.setattr("tidegate.consumer.parquet.manifests.MERGED", (2, 4))
    monkeypatch.setattr("tidegate.consumer.parquet.upkeep.GRACE_S", -1.0)
    store, done = DiskStore(tmp_path), 0
    LogTarget(store).recover()
    create, delete = store.create, store.delete
    for dies_at in range(2, 60):
        life = FilesLife(dies_at)
        for name, whole in (("create", create), ("delete", delete)):
            monkeypatch.setattr(store, name, life.watched(whole))
        target = LogTarget(store, Upkeep(retention_hours=0, keep_changes_hours=4))
        try:
            held = target.recover()
            done = held.partitions[0].offset if held is not None else 0
            for number in range(done + 1, done + dies_at):
                filled(target, 1, number)
                tidied(target)
                done = number
        except Killed:
            pass
        last = (open_log(tmp_path).ts >> LOGICAL_BITS) // HOUR_MS
        assert last - done in (0, 1), (
            "a death after its put leaves a commit that the process does not know of"
        )
        found = ids(tmp_path)
        assert found == list(range(last + 1 - len(found), last + 1))
        assert len(found) >= min(last, 5)
    assert done > 120
    target = LogTarget(DiskStore(tmp_path), Upkeep(retention_hours=0, keep_changes_hours=4))
    target.recover()
    for number in (done + 1, done + 2, done + 3):
        filled(target, 1, number)
        tidied(target)
    assert on_disk(tmp_path) == len(ids(tmp_path)) <= 7


def test_other_targets_keep_no_changes(tmp_path: Path) -> None:
    upkeep = Upkeep(keep_changes_hours=1)
    for target in (f"delta://{tmp_path}", f"iceberg://{tmp_path}", "mysql://root@127.0.0.1:1/"):
        with pytest.raises(InvalidInput, match="--keep-changes-hours is for a change log"):
            address_of(target, upkeep, NAMED)
    assert address_of(f"parquet://{tmp_path}", upkeep, NAMED) == LogAddress(tmp_path, upkeep)
