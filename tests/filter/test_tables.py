import pytest

from tests.filter.tables import NOT_NULL, column, index, table
from tidegate.filter.tables import ineligible
from tidegate.model.schema import TableSchema

A, B = column("a", 3), column("b", 3, flag=NOT_NULL)
VIRTUAL = column("c", 3, flag=NOT_NULL, generated="`a` + 1")


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (table([B], [index("uk", [0])]), ""),
        (table([A, B]), "it has no primary key and no unique key"),
        (table([A, B], [index("i", [0], unique=False)]), "it has no primary key and no unique key"),
        (
            table([A, B], [index("uk", [1, 0])]),
            "it has no primary key, and its unique key uk takes NULL in a",
        ),
        (
            table([A, B, VIRTUAL], [index("u1", [0]), index("u2", [2])]),
            "it has no primary key, and its unique key u1 takes NULL in a; "
            "its unique key u2 is over c, which rows do not carry",
        ),
    ],
)
def test_a_table_that_cannot_be_replicated_is_refused_with_a_reason(schema: TableSchema, why: str) -> None:
    assert ineligible(schema) == why
    assert schema.eligible == (why == "")
