from decimal import Decimal

import pytest

from tidegate.tidb import checksum, keys
from tidegate.tidb.checksum import Outcome
from tidegate.workload.bank_model import Bank, Work, ddl_step
from tidegate.workload.schema import Catalog

from .test_schema import new_bank


def play(seed: int, count: int = 300, catalog: Catalog | None = None) -> tuple[Bank, list[Work]]:
    bank = Bank(seed)
    bank.use(catalog or new_bank())
    return bank, [bank.open_accounts(1, 100), *(bank.next() for _ in range(count))]


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert play(3)[1] == play(3)[1]
    assert play(3)[1] != play(4)[1]


@pytest.mark.parametrize("version", [None, 0, 1, 2])
def test_rows_carry_the_checksums_that_the_switch_asks_for(version: int | None) -> None:
    catalog = new_bank()
    bank = Bank(3, version)
    bank.use(catalog)
    tables = {catalog.table(name).id: catalog.table(name) for name in catalog.tables}
    for work in [bank.open_accounts(1, 20), *(bank.next() for _ in range(50))]:
        for mutation in work.mutations:
            if mutation.value:
                table = tables[keys.parse_record(mutation.key).table_id]
                found = checksum.check(table, mutation.key, mutation.value)
                wanted = Outcome.UNCHECKED if version is None else Outcome.MATCHED
                assert (found.outcome, found.version) == (wanted, -1 if version is None else version)


def test_an_old_value_of_version_0_is_excused_after_a_ddl_but_no_raw_sum() -> None:
    """TiDB's rule: columns that came since the row was written are in no sum of it."""
    before = new_bank()
    table = before.table("accounts")
    old = {}
    for version in (0, 1, 2):
        bank = Bank(3, version)
        bank.use(before)
        old[version] = bank.open_accounts(1, 1).mutations[0]
    step, after = 0, before
    while [c.name for c in after.table("accounts").columns] == [c.name for c in table.columns]:
        _, after = ddl_step(after, step)
        step += 1
    changed = after.table("accounts")
    outcomes = [checksum.check(changed, m.key, m.value, old=True).outcome for m in old.values()]
    assert outcomes == [Outcome.EXCUSED, Outcome.MATCHED, Outcome.MATCHED]


def test_the_sum_never_changes() -> None:
    bank, _ = play(5, 0)
    total = bank.total
    for _ in range(300):
        bank.next()
        assert bank.total == total
    assert Decimal(total) == 100 * 10_000


def test_no_transaction_writes_a_key_twice() -> None:
    for work in play(6)[1]:
        keys = [m.key for m in work.mutations]
        assert len(keys) == len(set(keys)) == work.rows
