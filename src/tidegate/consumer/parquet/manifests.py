"""The chain of manifests: which files belong to a change log, and up to where.

`_tidegate/changes/` holds JSON files named after the first and the last commit that they describe:

    0…0041-0…0041.json     commit 41: the files that it adds, its DDLs; the consumer's state after it
    0…0001-0…0100.json     commits 1 to 100 once more, without the states: a merged manifest
    0…0001-0…010000.json   commits 1 to 10000

The commit point is `append`: a conditional put of the next number. Exactly one process can write a number, so
a consumer that was replaced cannot add one: its successor has taken that number, if only to take the log over
(`begin`). Nothing is ever rewritten. A commit writes what is new in it, and the tables' names, but no list of
older files. So that the number of files stays small, every `MERGED[0]` commits are merged into one file, and
every `MERGED[1]` commits into a larger one. A merged manifest is made of files that never change, so every
process would make the same one. The files that it replaces are removed `upkeep.GRACE_S` later, except for
those by which a process has taken the log over: a process that was replaced tries to put exactly that number,
however late it wakes up, and must find it taken.

To open a log, the folder is listed and the newest manifest read: the state in it is complete.

With a retention (`--keep-changes-hours`) the log begins later: `removed` in a manifest of one commit says up
to which commit the changes are gone, or will be soon. It never falls. It is durable before the first file is
removed, so a reader of the newest manifest never looks for a file that upkeep has removed. A release that
does not know `removed` would continue the log without it, so it must not be able to read such a manifest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from tidegate.errors import Fatal, Retryable
from tidegate.sink.lakehouse.store import OWN, Store, create_own
from tidegate.sink.lakehouse.takeover import TAKEOVERS, Writer, not_taken_over, taken_over

CHANGES: Final = f"{OWN}/changes"
FORMAT: Final = 1
SHORTENED: Final = 2
"""The format of a manifest with `removed`."""
FORMATS: Final = (FORMAT, SHORTENED)
MERGED: Final = (100, 10_000)
"""How many commits a merged manifest describes; each is a multiple of the one before."""
_NAME: Final = re.compile(r"(\d{20})-(\d{20})\.json")


@dataclass(frozen=True, slots=True)
class ChangeFile:
    """A data file: rows of one table, in the columns of one version of its definition."""

    path: str
    """Below the target's root."""
    schema: str
    table: str
    table_id: int
    """TiDB's id of the table; 0: not known."""
    version: int
    """The number of the definition, in the name of its file in `_tidegate/definitions`."""
    keys: tuple[str, ...]
    """The columns of the table's key; empty: it has none."""
    min_ts: int
    max_ts: int
    """The smallest and the largest commit ts of its rows."""
    rows: int

    def to_json(self) -> dict[str, Any]:
        """As in a manifest."""
        return {
            "file": self.path,
            "schema": self.schema,
            "table": self.table,
            "table_id": self.table_id,
            "version": self.version,
            "keys": self.keys,
            "min_ts": self.min_ts,
            "max_ts": self.max_ts,
            "rows": self.rows,
        }


@dataclass(frozen=True, slots=True)
class LoggedDdl:
    """A DDL, after all rows of the entries before it."""

    ts: int
    schema: str
    table: str
    query: str
    """Empty: rows have shown a table or columns that no DDL on the topic describes."""
    steps: tuple[Mapping[str, Any], ...]
    """Its effect on tables and rows of the target (`steps.in_log`)."""

    def to_json(self) -> dict[str, Any]:
        """As in a manifest."""
        named = {"schema": self.schema, "table": self.table}
        return {"ddl": self.query, "ts": self.ts} | named | {"steps": list(self.steps)}


Entry = ChangeFile | LoggedDdl


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit: the files and DDLs that it adds to the log."""

    number: int
    ts: int
    """The log holds every change up to this ts, and none above it."""
    word: str
    """The random word of the process that made the commit, which is in the names of its files."""
    entries: tuple[Entry, ...] = ()
    """In the order in which it happened; files between two DDLs are in no order."""
    begins: bool = False
    """Whether it is the first of its process, which has taken the log over with it."""

    def to_json(self) -> dict[str, Any]:
        """As in a manifest."""
        body: dict[str, Any] = {"number": self.number, "ts": self.ts, "writer": self.word}
        body |= {"begins": True} if self.begins else {}
        return body | {"entries": [entry.to_json() for entry in self.entries]}


@dataclass(frozen=True, slots=True)
class State:
    """The state that a restart needs; complete in each manifest of one commit."""

    writer: Writer
    position: str | None = None
    """None: nothing was ever committed."""
    tables: tuple[tuple[str, str, str], ...] = ()
    """Schema, table and path; the position has the numbers of their definitions."""
    dropped: tuple[int, ...] = ()
    """The ids of tables that were dropped or truncated, the newest last."""
    clean: int = 0
    """No file of a commit up to here is left that its manifest does not name."""
    removed: int = 0
    """The changes of the commits up to here are not in the log any more; 0: it has all."""

    def to_json(self) -> dict[str, Any]:
        """As in a manifest."""
        body: dict[str, Any] = {"writer": self.writer.to_json(), "position": self.position}
        return body | {"tables": self.tables, "dropped": self.dropped, "clean": self.clean}


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of one commit."""

    commit: Commit
    state: State = field(repr=False)

    @property
    def number(self) -> int:
        """The number of its commit."""
        return self.commit.number

    def to_json(self) -> bytes:
        """The file's bytes."""
        removed = self.state.removed
        body = {"format": SHORTENED, "removed": removed} if removed else {"format": FORMAT}
        return orjson.dumps(body | {"commits": [self.commit.to_json()], "state": self.state.to_json()})


class ManifestChain:
    """The manifests of one log. One thread uses it, except for `check_writer`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.newest: Manifest | None = None
        """The last commit that this process has made or found; None: not looked yet, or there is none."""
        self._begun: set[int] = set()
        """Commits by which a process has taken the log over, in the manifests `_looked` at."""
        self._looked: set[tuple[int, int]] = set()

    @property
    def removed(self) -> int:
        """The commit up to which the changes are not in the log any more, according to `newest`."""
        return self.newest.state.removed if self.newest is not None else 0

    # --- reading

    def find(self) -> Manifest | None:
        """Read the newest manifest; None: there is no log. Fatal if it is gone."""
        ends = self._listed()
        last = max((last for _, last in ends), default=0)
        # A listing may miss the newest files.
        while self._is_taken(last + 1):
            last += 1
        self.newest = self._read(last) if last else None
        return self.newest

    def _read(self, number: int) -> Manifest:
        body = self._body(number, number)
        if body is None:
            raise Fatal(
                "the newest manifest of a change log is gone",
                where=self._store.uri(key_of(number, number)),
                why="a merged manifest names its commit, and only the manifest itself has the position",
                fix="restore it, or start a new target",
            )
        held = body["state"]
        state = State(
            Writer.from_json(held["writer"]),
            held["position"],
            tuple((schema, table, path) for schema, table, path in held["tables"]),
            tuple(held["dropped"]),
            held["clean"],
            body.get("removed", 0),
        )
        return Manifest(commit_of(body["commits"][0]), state)

    def _body(self, first: int, last: int) -> dict[str, Any] | None:
        data = self._store.get(key_of(first, last))
        return parsed(data, self._store.uri(key_of(first, last))) if data is not None else None

    def _is_taken(self, number: int) -> bool:
        return self._store.get(key_of(number, number)) is not None

    def _listed(self) -> list[tuple[int, int]]:
        found = (_NAME.fullmatch(name) for name in self._store.names(CHANGES))
        return sorted((int(one[1]), int(one[2])) for one in found if one is not None)

    def commits(self, after: int = 0) -> Iterator[Commit]:
        """The commits after a number, ascending, up to the newest. Reads merged manifests where they are.

        Commits whose changes were removed are left out, as far as `newest` says so.
        """
        ends = self._listed()
        after = max(after, self.removed)
        # A listing may miss the newest files; a manifest that this process has put is there.
        known = self.newest.number if self.newest is not None else 0
        newest, at = max(known, max((last for _, last in ends), default=0)), after
        while at < newest:
            covering = [(first, last) for first, last in ends if first <= at + 1 <= last]
            # The largest, so that few files are read.
            first, last = max(covering, key=lambda one: one[1], default=(at + 1, at + 1))
            body = self._body(first, last)
            if body is None:
                raise Retryable(
                    "a manifest of a change log is gone",
                    where=self._store.uri(key_of(first, last)),
                    why="it was merged with others since the folder was listed, or somebody has removed it",
                    fix="read again; if it stays missing, restore it",
                )
            yield from (commit_of(one) for one in body["commits"] if one["number"] > at)
            at = last

    def _last(self) -> int:
        """The newest number that the folder shows."""
        return max((last for _, last in self._listed()), default=0)

    # --- writing

    def begin(self, writer: Writer) -> Manifest:
        """Add a manifest with the newest state and this writer. Every earlier writer is fenced from here on.

        InvalidInput if the log is another consumer's. Retryable if others committed first `TAKEOVERS` times.
        """
        for _ in range(TAKEOVERS):
            held = self.find()
            state = held.state if held is not None else State(writer)
            state.writer.check_name(writer.name, self._store)
            ts, number = (held.commit.ts, held.number + 1) if held is not None else (0, 1)
            made = Manifest(Commit(number, ts, writer.word, begins=True), replace(state, writer=writer))
            # The number may be free because upkeep has removed it, if this process was paused for hours.
            if create_own(self._store, key_of(number, number), made.to_json()) and self._last() <= number:
                self.newest = made
                return made
        raise not_taken_over(self._store.uri(CHANGES))

    def append(self, made: Manifest) -> None:
        """The commit point. Fenced if another process has taken the log over."""
        assert self.newest is not None, "`begin` comes first"
        assert made.number == self.newest.number + 1
        if not create_own(self._store, key_of(made.number, made.number), made.to_json()):
            self.check_writer()
            raise AssertionError("a number that is taken has a manifest")
        self.newest = made

    def check_writer(self) -> None:
        """Fenced if another process has taken the log over."""
        assert self.newest is not None, "`begin` comes first"
        number = self.newest.number + 1
        if self._is_taken(number):
            raise taken_over(self._store, self._read(number).state.writer)

    # --- upkeep

    def merge(self) -> Iterator[None]:
        """Write the merged manifests that are due, the smaller ones first, one with each step."""
        for size in MERGED:
            ends = self._listed()
            newest = max((last for _, last in ends), default=0)
            # Where a larger manifest covers a range, the smaller ones may be gone.
            covered = max((last for first, last in ends if last - first + 1 >= size), default=0)
            # A range that begins with removed commits is never merged; the rest of it is removed later.
            covered = max(covered, -(-self.removed // size) * size)
            for last in range(covered + size, newest + 1, size):
                commits = list(self._commits_between(last - size, last))
                if len(commits) != size:
                    return  # this listing misses some; the smaller manifests stay until a later round
                body = {"format": FORMAT, "commits": [commit.to_json() for commit in commits]}
                # If it is there already, another process has put the same bytes.
                create_own(self._store, key_of(last - size + 1, last), orjson.dumps(body))
                yield

    def _commits_between(self, after: int, upto: int) -> Iterator[Commit]:
        for commit in self.commits(after):
            if commit.number > upto:
                return
            yield commit

    def thin(self, before: float) -> int:
        """Remove manifests that a merged one of before this Unix time describes. Returns how many.

        Two kinds stay: the newest, because only it has the consumer's state, and those by which a process has
        taken the log over.
        """
        files = self._store.files(CHANGES)
        ends = {(int(one[1]), int(one[2])): name for name in files if (one := _NAME.fullmatch(name))}
        newest = max((last for _, last in ends), default=0)
        # The smallest first, because it may have to be read.
        old = sorted((o for o, name in ends.items() if o[1] > o[0] and files[name] < before), key=_size)
        stay = self._begun | {newest}
        gone = []
        for (first, last), name in ends.items():
            inside = (o for o in old if o[0] <= first and last <= o[1] and o != (first, last))
            covering = next(inside, None)
            if covering is None or (first == last and first in stay):
                continue
            if first == last and covering not in self._looked:
                self._look(covering)
            if first != last or first not in self._begun:
                gone.append(f"{CHANGES}/{name}")
        if gone:
            self._store.delete(gone)
        return len(gone)

    def forget(self, upto: int) -> int:
        """Remove the manifests whose commits are all up to a number. Returns how many.

        The caller has made `State.removed` durable. Manifests by which a process has taken the log over stay,
        as in `thin`.
        """
        # Otherwise a reader of the newest manifest would look for files that are gone.
        assert upto <= self.removed
        gone = []
        for first, last in self._listed():
            if last <= upto and not (first == last and self._begins(first)):
                gone.append(key_of(first, last))
        if gone:
            self._store.delete(gone)
        return len(gone)

    def _begins(self, number: int) -> bool:
        """Whether a process has taken the log over with this commit, whose manifest is there."""
        if number not in self._begun:
            body = self._body(number, number)
            if body is None or not commit_of(body["commits"][0]).begins:
                return False
            self._begun.add(number)
        return True

    def _look(self, merged: tuple[int, int]) -> None:
        """Note which commits of a merged manifest have taken the log over."""
        body = self._body(*merged)
        self._begun |= {one["number"] for one in body["commits"] if one.get("begins")} if body else set()
        self._looked.add(merged)


def _size(ends: tuple[int, int]) -> int:
    return ends[1] - ends[0]


def key_of(first: int, last: int) -> str:
    """The key of the manifest that describes these commits."""
    return f"{CHANGES}/{first:020d}-{last:020d}.json"


def parsed(data: bytes, where: str) -> dict[str, Any]:
    """A manifest's JSON; Fatal if it is something else, or of a later release."""
    try:
        body: dict[str, Any] = orjson.loads(data)
        if body["format"] not in FORMATS:
            raise ValueError(f"format {body['format']}, this release reads {FORMAT} and {SHORTENED}")
    except (ValueError, KeyError, TypeError) as error:
        raise Fatal(
            "a manifest of a change log cannot be read",
            where=where,
            why=str(error),
            fix="use the release that wrote it, or restore the file",
        ) from error
    return body


def commit_of(body: Mapping[str, Any]) -> Commit:
    """One commit of a manifest."""
    entries = tuple(_entry(one) for one in body["entries"])
    return Commit(body["number"], body["ts"], body["writer"], entries, body.get("begins", False))


def _entry(body: Mapping[str, Any]) -> Entry:
    if "ddl" in body:
        steps: Sequence[Mapping[str, Any]] = body["steps"]
        return LoggedDdl(body["ts"], body["schema"], body["table"], body["ddl"], tuple(steps))
    return ChangeFile(
        *(body["file"], body["schema"], body["table"], body["table_id"], body["version"]),
        *(tuple(body["keys"]), body["min_ts"], body["max_ts"], body["rows"]),
    )
