from decimal import Decimal

from tidegate.workload.bank_model import Bank, Work
from tidegate.workload.schema import Catalog

from .test_schema import new_bank


def play(seed: int, count: int = 300, catalog: Catalog | None = None) -> tuple[Bank, list[Work]]:
    bank = Bank(seed)
    bank.use(catalog or new_bank())
    return bank, [bank.open_accounts(1, 100), *(bank.next() for _ in range(count))]


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert play(3)[1] == play(3)[1]
    assert play(3)[1] != play(4)[1]


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
