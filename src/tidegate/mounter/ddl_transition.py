"""The effect of a DDL job, as data: changes of the catalogue, events for targets, or a refusal.

Made by `ddl.transition`, applied by `schema_store`, filtered for each changefeed by `ddl_admission`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tidegate.errors import Fatal, Undecodable
from tidegate.model.ddl import DdlEvent
from tidegate.mounter.ddl_renames import Name
from tidegate.mounter.ddl_rules import RECREATE
from tidegate.mounter.table_version import Parsed, TableVersion
from tidegate.tidb.ddl_job import DdlJob


class Catalog(Protocol):
    """The catalogue as the jobs before this one have left it."""

    @property
    def cache(self) -> Parsed:
        """Counts the parsed table versions."""
        ...

    def schema_name(self, schema_id: int) -> str | None:
        """The schema's name; None if there is no such schema."""

    def current(self, table_id: int) -> TableVersion | None:
        """The newest version of a table or view by its logical id."""

    def tables_of(self, schema_id: int) -> list[TableVersion]:
        """The newest versions of all tables and views of a schema."""

    def dropped_with(self, schema_id: int) -> Sequence[TableVersion] | None:
        """The tables that a schema held when it was dropped; None if they are not known."""


class TableChange(NamedTuple):
    """A logical table id and its new version; None if the table ends."""

    table_id: int
    after: TableVersion | None


@dataclass(frozen=True, slots=True)
class EmittedDdl:
    """One event, and what decides whether a changefeed sends it (`ddl_admission`)."""

    event: DdlEvent
    before: TableVersion | None = None
    after: TableVersion | None = None
    partner: TableVersion | None = None
    """The plain table of an EXCHANGE PARTITION, before it."""
    job_names: tuple[Name, Name] | None = None
    """For a step of RENAME TABLES: the names of the table before and after the whole job."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A job at which the changefeeds that it concerns must stop; empty names concern every changefeed."""

    what: str
    where: str
    why: str
    fix: str
    schema: str
    table: str
    start_ts: int = 0
    """The job's start_ts, which `ignore-txn-start-ts` must name to skip it; 0 if it is not known."""

    def error(self) -> Fatal:
        """The error with which a changefeed fails."""
        # The only way on for a user who knows that the job does not matter: the same rule is asked before the
        # job is judged.
        passing = f"; to pass over it, set ignore-txn-start-ts = [{self.start_ts}]" if self.start_ts else ""
        return Fatal(self.what, where=self.where, why=self.why, fix=self.fix + passing)


@dataclass(frozen=True, slots=True)
class Transition:
    """The effect of a job: the schemas and tables that change, and the events for targets.

    `tables` must be applied in their order. `ignored` says why there is no event.
    """

    schemas: dict[int, str | None] = field(default_factory=dict)
    tables: list[TableChange] = field(default_factory=list)
    emitted: list[EmittedDdl] = field(default_factory=list)
    ignored: str = ""
    refusal: Refusal | None = None


def refusal_of(job: DdlJob, name: str, fix: str, schema: str = "") -> Refusal:
    """The refusal of a job; `name`: its kind, or why it cannot be replicated."""
    return Refusal(
        f"a DDL job cannot be replicated: {name}",
        f"job {job.id}, {job.schema_name}.{job.table_name}, finished at {job.finished_ts}",
        job.query[:200],
        fix,
        schema or job.schema_name,
        job.table_name,
        job.job_start_ts,
    )


def unreadable(error: Undecodable, job: DdlJob | None = None) -> Refusal:
    """The refusal of a job that is not as TiDB writes it; without `job` it concerns every changefeed."""
    named = (job.schema_name, job.table_name, job.job_start_ts) if job is not None else ("", "", 0)
    return Refusal(error.what, error.where, error.why, error.fix or RECREATE, *named)
