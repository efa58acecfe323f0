"""RENAME TABLES whose steps take names that earlier steps have freed; made from recorded jobs and tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.mounter.jobs import finished
from tidegate.errors import InvalidInput
from tidegate.mounter.ddl_admission import admit
from tidegate.mounter.ddl_renames import names_in
from tidegate.mounter.ddl_transition import EmittedDdl
from tidegate.mounter.schema_store import SchemaStore
from tidegate.tidb.ddl_job import DdlJob
from tidegate.tidb.table_filter import TableFilter

Step = tuple[str, str, str]
"""Table before the job, new schema, new name."""
SWAP: tuple[Step, ...] = (("a", "d1", "t"), ("b", "d1", "a"), ("a", "d1", "b"))
ROTATION: tuple[Step, ...] = (("a", "d2", "t"), ("b", "d1", "a"), ("c", "d1", "b"), ("a", "d1", "c"))
QUERIES = {
    SWAP: "rename table a to t, b to a, /* back */ T to `b`;",
    ROTATION: "RENAME TABLES d1.a TO d2.t, d1.b TO a, c to b, d2.t to c",
}


def named(info: dict[str, Any], table_id: int, name: str) -> dict[str, Any]:
    return {**info, "id": table_id, "name": {"O": name, "L": name.lower()}}


class Made:
    """Tables d1.a, d1.b, d1.c, a schema d2, and jobs that rename them."""

    def __init__(self) -> None:
        self.store = SchemaStore()
        created: list[DdlJob] = []
        for job, _ in finished("basic", ours=True):
            if job.action == 1:
                self.store.apply(job)
            if job.action == 3 and job.table_info is not None:
                created.append(job)
            if job.action == 47:
                self.job = job
                break
        self.ids = {"a": 901, "b": 902, "c": 903}
        first = next(job for job in created if job.schema_name == "d1")
        self.schemas = {
            name: next(i for i in range(1, 2000) if self.store.schema_name(i) == name)
            for name in ("d1", "d2")
        }
        ts = self.job.finished_ts - 10
        assert first.table_info is not None
        self.info = first.table_info
        for at, (name, table_id) in enumerate(self.ids.items()):
            info = named(first.table_info, table_id, name)
            made = replace(first, id=9000 + at, finished_ts=ts + at, table_info=info, table_id=table_id)
            assert self.store.apply(made).emitted

    def rename(self, steps: tuple[Step, ...], leave_out: tuple[str, ...] = (), version: int = 2) -> DdlJob:
        last = {table: name for table, _, name in steps}
        infos = tuple(named(self.info, self.ids[table], last[table]) for table, _, _ in steps)
        where = {name: ("d1", name) for name in self.ids}
        entries = []
        for table, schema, name in steps:
            old = where[table]
            where[table] = (schema, name)
            entry = {
                "old_schema_id": self.schemas[old[0]],
                "new_schema_id": self.schemas[schema],
                "table_id": self.ids[table],
                "old_schema_name": {"O": old[0], "L": old[0]},
                "old_table_name": {"O": old[1].upper(), "L": old[1]},  # as the user wrote it
                "new_table_name": {"O": name, "L": name},
            }
            entries.append({key: value for key, value in entry.items() if key not in leave_out})
        args: Any = {"rename_table_infos": entries}
        if version == 1:
            keys = ("old_schema_id", "new_schema_id", "new_table_name", "table_id", "old_schema_name")
            args = [[entry.get(key) for entry in entries] for key in (*keys, "old_table_name")]
            args = args[: 5 if "old_table_name" in leave_out else 6]
        return replace(self.job, args=args, version=version, table_infos=infos, query=QUERIES[steps])


@pytest.fixture
def made() -> Made:
    return Made()


def emitted_names(emitted: tuple[EmittedDdl, ...]) -> list[tuple[str, str]]:
    assert [one.event.seq for one in emitted] == list(range(len(emitted)))
    for one in emitted:
        event = one.event
        expected = (
            f"RENAME TABLE `{event.old_schema}`.`{event.old_table}` TO `{event.schema}`.`{event.table}`"
        )
        assert event.query == expected
        assert one.after is not None
        assert event.after is not None
        assert event.after["name"]["O"] == event.table == one.after.table
        assert event.before is not None
        assert event.before["name"]["O"] == event.old_table
    return [
        (f"{t.event.old_schema}.{t.event.old_table}", f"{t.event.schema}.{t.event.table}") for t in emitted
    ]


NAMES = ("new_table_name", "old_table_name", "old_schema_name")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("leave_out", [(), ("old_table_name",), NAMES], ids=["all", "no old names", "none"])
def test_each_step_of_a_chain_has_its_own_names(made: Made, version: int, leave_out: tuple[str, ...]) -> None:
    applied = made.store.apply(made.rename(SWAP, leave_out, version))
    assert [(old, new.lower()) for old, new in emitted_names(applied.emitted)] == [
        ("d1.a", "d1.t"),
        ("d1.b", "d1.a"),
        ("d1.t" if applied.emitted[0].event.table == "t" else "d1.T", "d1.b"),
    ]
    now = applied.finished_ts
    assert [made.store.table(i, now).table for i in (901, 902)] == ["b", "a"]  # type: ignore[union-attr]
    assert [made.store.table(i, now - 1).table for i in (901, 902)] == ["a", "b"]  # type: ignore[union-attr]


def test_a_rotation_goes_through_another_schema(made: Made) -> None:
    applied = made.store.apply(made.rename(ROTATION))
    assert emitted_names(applied.emitted) == [
        ("d1.a", "d2.t"),
        ("d1.b", "d1.a"),
        ("d1.c", "d1.b"),
        ("d2.t", "d1.c"),
    ]
    names = [(t.id, t.name) for t in made.store.entries(applied.finished_ts) if t.id in made.ids.values()]
    assert names == [(901, "d1.c"), (902, "d1.a"), (903, "d1.b")]
    again = SchemaStore.load(made.store.dump())
    assert [(t.id, t.name) for t in again.entries(applied.finished_ts) if t.id > 900] == names


def test_names_without_arguments_and_query_follow_the_chain_or_fail(made: Made) -> None:
    """A job whose names cannot be followed is undecodable."""
    job = replace(made.rename(SWAP, ("new_table_name",)), query="")
    assert [n.lower() for _, n in emitted_names(made.store.apply(job).emitted)] == ["d1.t", "d1.a", "d1.b"]
    job = replace(made.rename(SWAP, NAMES), query="", finished_ts=job.finished_ts + 1, id=77)
    refusal = made.store.apply(job).refusal
    assert refusal is not None
    assert "no name" in refusal.error().what


def test_names_in_the_midst_of_a_job_decide_nothing_about_the_filter(made: Made) -> None:
    emitted = made.store.apply(made.rename(ROTATION)).emitted
    inside = TableFilter(["d1.*"])
    assert [admit(one, inside) for one in emitted] == [True] * 4
    assert [admit(one, TableFilter(["d2.*"])) for one in emitted] == [False] * 4
    only_c = TableFilter(["d1.c"])
    with pytest.raises(InvalidInput, match="renamed into the filter"):
        [admit(one, only_c) for one in emitted]


def test_a_renamed_view_is_emitted_and_has_its_new_name_in_the_catalogue() -> None:
    store = SchemaStore()
    for job, _ in finished("views_sequences", ours=True):
        applied = store.apply(job)
        if job.action == 21:
            break
    (created,) = applied.emitted
    assert created.after is not None
    view = created.after
    info = {**view.info(), "name": {"O": "v_new", "L": "v_new"}}
    query = f"rename table {view.table} to v_new"
    rename = replace(job, id=1, action=14, table_info=info, query=query, finished_ts=job.finished_ts + 5)
    (emitted,) = store.apply(rename).emitted
    assert (emitted.event.old_table, emitted.event.table, emitted.event.query) == (view.table, "v_new", query)
    assert (emitted.event.added_ids, emitted.event.removed_ids) == ((), ())
    assert admit(emitted, TableFilter())
    assert store.current(view.id).table == "v_new"  # type: ignore[union-attr]
    gone = replace(job, id=2, action=24, table_info=info, table_id=view.id, finished_ts=job.finished_ts + 6)
    (emitted,) = store.apply(gone).emitted
    assert emitted.event.query.endswith(".`v_new`")


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("rename table a to b", [(("", "a"), ("", "b"))]),
        (
            "RENAME TABLES x.a TO `y`.`b``c.d`, `to` to to2 ;",
            [
                (("x", "a"), ("y", "b`c.d")),
                (("", "to"), ("", "to2")),
            ],
        ),
        ("rename table a to b; -- then", [(("", "a"), ("", "b"))]),
        ("/*+ x */ rename /* y, z */ table a # c\n to b", [(("", "a"), ("", "b"))]),
        ("rename table a to", []),
        ("rename table a to b c", []),
        ("rename table a.b.c to d", []),
        ("alter table a rename to b", []),
        ("rename user a to b", []),
        ("", []),
    ],
)
def test_names_are_read_from_the_statement(query: str, names: list[Any]) -> None:
    assert names_in(query) == names
