from tools.ddl_page import PAGE, page

from tidegate.tidb import keys


def test_the_page_of_ddl_is_what_the_rules_say() -> None:
    assert PAGE.read_text() == page(), "run: python -m tools.ddl_page"


def test_the_key_it_shows_is_that_of_a_job() -> None:
    block = page().split("```")[1]
    shown = "".join(line[:24] for line in block.strip().splitlines())
    assert bytes.fromhex(shown) == keys.int_record(keys.DDL_JOB_TABLE_ID, 213)
