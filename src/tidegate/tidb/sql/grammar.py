"""Puts the parts of the parser together. Each part gets the cursor and the parts that it contains."""

from __future__ import annotations

from tidegate.tidb.sql.aggregates import Aggregates
from tidegate.tidb.sql.alter_partitions import PartitionChanges
from tidegate.tidb.sql.alter_table import AlterTable
from tidegate.tidb.sql.calls import Calls
from tidegate.tidb.sql.column_type import ColumnTypes
from tidegate.tidb.sql.columns import Columns
from tidegate.tidb.sql.constraints import Constraints
from tidegate.tidb.sql.cursor import Cursor
from tidegate.tidb.sql.expressions import Expressions
from tidegate.tidb.sql.literals import Literals
from tidegate.tidb.sql.nested import Nested
from tidegate.tidb.sql.operands import Operands, Subqueries
from tidegate.tidb.sql.options import Options
from tidegate.tidb.sql.partitions import Partitions
from tidegate.tidb.sql.queries import Queries
from tidegate.tidb.sql.sequences import SequenceOptions
from tidegate.tidb.sql.statements import Statements
from tidegate.tidb.sql.tables import TableReferences
from tidegate.tidb.sql.text_calls import TextCalls
from tidegate.tidb.sql.time_calls import TimeCalls
from tidegate.tidb.sql.views import Views
from tidegate.tidb.sql.windows import Windows


def statements_at(cursor: Cursor) -> Statements:
    """The parser of the statements that a cursor is at."""
    nested = Nested()
    literals, types = Literals(cursor), ColumnTypes(cursor)
    subqueries = Subqueries(cursor, nested)
    operands = Operands(cursor, literals, subqueries, nested)
    expressions = Expressions(cursor, operands, subqueries)
    windows = Windows(cursor, literals, expressions)
    times = TimeCalls(cursor, operands, expressions)
    texts = TextCalls(cursor, operands, expressions)
    aggregates = Aggregates(cursor, expressions, windows)
    calls = Calls(cursor, expressions, subqueries, types, times, texts, aggregates)
    tables = TableReferences(cursor, subqueries, expressions)
    queries = Queries(cursor, subqueries, expressions, windows, tables)
    nested.expressions, nested.calls, nested.queries = expressions, calls, queries

    constraints = Constraints(cursor, expressions)
    columns = Columns(cursor, literals, expressions, types, times, calls, constraints)
    options = Options(cursor, literals)
    partitions = Partitions(cursor, operands, expressions, options)
    changes = PartitionChanges(cursor, options, partitions)
    alter_table = AlterTable(cursor, literals, expressions, columns, constraints, options, changes)
    views, sequences = Views(cursor, queries), SequenceOptions(cursor)
    return Statements(
        cursor, subqueries, views, columns, constraints, options, partitions, alter_table, sequences
    )
