from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden_folder import count, lines
from tidegate.errors import InvalidInput
from tidegate.tidb.table_filter import TableFilter, is_system_schema

CASES = list(lines("filters/table_rules"))


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['rules']}-{case['case_sensitive']}")
def test_golden_rules_pass_the_tables_ticdc_passes(case: dict[str, object]) -> None:
    count("filters", "table rules")
    if case.get("error"):
        with pytest.raises(InvalidInput):
            TableFilter(case["rules"], case["case_sensitive"])  # type: ignore[arg-type]
        return
    rules = TableFilter(case["rules"], case["case_sensitive"])  # type: ignore[arg-type]
    for schema, table, ignore_table, ignore_schema in case["answers"]:  # type: ignore[attr-defined]
        assert rules.matches(schema, table) is not ignore_table, (schema, table)
        assert rules.matches_schema(schema) is not ignore_schema, schema


def test_the_default_passes_everything_but_system_schemas() -> None:
    rules = TableFilter()
    assert rules.matches("any", "thing")
    assert not rules.matches("MySQL", "user")
    assert is_system_schema("Performance_Schema")


@given(st.text(max_size=30))
def test_any_rule_is_read_or_refused(rule: str) -> None:
    with suppress(InvalidInput):
        TableFilter([rule]).matches("a", "b")


def test_a_quoted_name_may_hold_its_quote() -> None:
    assert TableFilter(["`a``b`.`c`"]).matches("a`b", "c")


@pytest.mark.parametrize(
    "rule", ["/" + "\\a" * 10_000, "/" + "\\/" * 10_000, '"' * 20_001, "[" + "\\-" * 10_000]
)
def test_an_unended_rule_is_refused_in_time_by_its_length(rule: str) -> None:
    """One that tries each backslash both ways never ends; and the error does not repeat it all."""
    with pytest.raises(InvalidInput) as refused:
        TableFilter([rule])
    assert len(refused.value.render()) < 1000


def test_a_backslash_may_be_the_last_sign_of_an_expression_as_in_ticdc() -> None:
    assert TableFilter(["/a\\/b/.*"]).matches("a/b", "t")
    with pytest.raises(InvalidInput, match="invalid pattern"):
        TableFilter(["/ab\\/"])
