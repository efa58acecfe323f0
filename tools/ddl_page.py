"""Writes docs/formats/ddl.md from the rules that the code uses.

python -m tools.ddl_page        writes the page; a test fails if it is out of date
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tidegate.mounter.ddl_rules import EMITTED_BY_TICDC, RULES, DdlOutcome, Rule

PAGE: Final = Path(__file__).parents[1] / "docs" / "formats" / "ddl.md"

HEAD: Final = """\
# DDL

<!-- Written by tools/ddl_page.py from src/tidegate/mounter/ddl_rules.py: change those, not this page. -->

How each DDL job of TiDB is replicated: the statement that targets get, the key ranges that are followed from then on, and
the effect on rows.

## Where jobs are found

TiDB keeps a job as one row of `mysql.tidb_ddl_job` and rewrites it at every step. It moves a finished job to
`mysql.tidb_ddl_history`. Both tables are in one span of keys, which is followed like any table:

```
74                        't'
80 00 ff ff ff ff ff fe   table id 2^48 - 2 (the history: 2^48 - 4) as a comparable integer
5f 72                     '_r'
80 00 00 00 00 00 00 d5   job id 213 as a comparable integer
```

The value is a row in format v1 or v2; column 5 (`job_meta`; in the history column 2) holds the job as JSON. We
read `id`, `type` (the code below), `state`, `schema_state`, `schema_id`, `table_id`, `schema_name`, `table_name`,
`query`, `start_ts`, `raw_args` (a list in version 1, an object in version 2) and, in `binlog`, `SchemaVersion`,
`DBInfo`, `TableInfo`, `MultipleTableInfos`.

- **F**, the FinishedTS, is the commit ts of the write with state *done* (4). Rows with commit_ts <= F have the schema
  before the job, later ones the schema after it.
- **E** is F, except for jobs that take effect for rows before they are done: it is the commit ts of the write that
  takes them to the state *delete only* (drop and truncate partition), *write reorganization* (flashback cluster) or
  *public* (modify column and multi-schema change, if a column gets new data and TiDB is 8.4 or later; reorganize
  partition, partition by and remove partitioning, where TiDB has that step), from which they cannot go back. After E
  sessions write to the partitions, or the columns, as they will be, while the job may still clean global indexes for
  hours. The event is sent with FinishedTS E, once; what is written to a partition after E although it goes away is not
  sent. (TiCDC sends a modify column at F, and what was written to the column between E and F as NULL.)
- Rows in the history count only for *create table* and *create tables*, in case they were never in the job table
  (TiDB 8.2 with fast table creation).
- A job without a schema version, and one met before (by id), changes nothing.

## Order

Everything up to a job's ts is delivered, then the event, then rows above it; jobs go by their ts. New spans are
followed from the job's ts on before it is let through. The files of spans that have ended are removed when the
durable checkpoint of every changefeed is past them, `retention` included.

## The jobs

Every statement is sent *restored*, as TiCDC sends it: parsed with the session's sql_mode and character set, and
written again with names in backquotes, words in upper case, strings in single quotes with their character set,
what only TiDB knows in special comments (`/*T![clustered_index] CLUSTERED */`), placement left out and TTL
switched off. "As written" is the user's statement, restored. One that cannot be read is sent as the user wrote it,
and the log of the server names it in a warning. Where the text that TiDB restores would be another statement (a
backslash in the comment of a table, `CHAR()`, `MOD()` next to an operator), the statement that ran is sent, in words
that MySQL and MariaDB understand. Filters see the user's own text.

## In a header

A statement alone is not enough for a target that is not TiDB. It may need a special comment to be understood, a default of
`current_timestamp` has the job's start ts for rows written before, and TiCDC leaves a backtick inside a name as it is in the
statements that it rebuilds. So the Kafka header `tidegate-ddl` has the whole event: the table's definition before and after, and
the job's start ts.

"""

ROWS: Final = """\

## What stops a changefeed

Each of these lets everything before it through first; the changefeed is then *failed* with what to do. Tables and
schemas that the filter excludes stop nobody.

| what | why |
|---|---|
| a refused job | see above |
| a rename into the filter | the table's rows from before were never sent |
| the loss of a table's last key | its rows could not be addressed any more; `force-replicate = true` continues |
| an exchange between a table in the filter and one outside | rows would come or go unseen |
| *recover schema* when it is not known which tables come back | the schema was dropped before the changefeed began |
| an action this version does not know | a newer TiDB may mean anything by it |
| a job that cannot be read | rows after it might be decoded wrongly |

## Where we differ from TiCDC

| what | TiCDC | here |
|---|---|---|
| rows written to new partitions before *truncate partition* or a reorganisation is done | lost | sent after the event |
| *recover schema* | discarded; the next DDL in the schema fails | sent; its tables are followed again |
| *drop indexes* (before TiDB 6.2) | discarded | sent |
| *rename tables* with tables that have no key | all or none, by one of them | each by itself |
| a rename to a schema that the filter excludes | may fail | sent; the table ends |
| a backtick inside a name, in rebuilt statements | left as it is | doubled |
| *rename tables* that uses a name twice, as in `a -> t, b -> a, t -> b` | classic stops; the new architecture follows | followed |
| the schema's name after a single rename in *rename tables* | classic has it in lower case | as it was created |
| an error | at once, or in the next DDL | after everything before it was delivered |
"""


def page() -> str:
    """The whole page."""
    lines = ["| code | job | sent to targets | spans | rows |", "|---|---|---|---|---|"]
    lines += [_line(action, rule) for action, rule in sorted(RULES.items())]
    counts = [(o, sum(r.handling.outcome is o for r in RULES.values())) for o in DdlOutcome]
    summary = ", ".join(f"{count} {outcome}" for outcome, count in counts)
    beyond = ", ".join(str(a) for a in sorted(_sent() - EMITTED_BY_TICDC))
    note = f"\n{summary}. Sent by Tidegate and not by TiCDC: {beyond}. There is no action 66.\n"
    return HEAD + "\n".join(lines) + "\n" + note + ROWS


def _sent() -> set[int]:
    return {action for action, rule in RULES.items() if rule.handling.outcome is DdlOutcome.EVENT}


def _line(action: int, rule: Rule) -> str:
    match rule.handling.outcome:
        case DdlOutcome.EVENT:
            sent = rule.handling.query
            spans = str(rule.spans)
        case DdlOutcome.IGNORED:
            sent, spans = f"nothing: {rule.note}", ""
        case DdlOutcome.REFUSED:
            sent, spans = f"**refused**: {rule.note}", ""
    return f"| {action} | {rule.name} | {sent} | {spans} | {rule.rows} |"


if __name__ == "__main__":
    PAGE.write_text(page())
