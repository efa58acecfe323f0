"""How often a reader of messages asks the schema registry."""

from __future__ import annotations

from tidegate.codec.base import Batch
from tidegate.codec.protocols.avro.plain import named_ids
from tidegate.codec.schema_book import MAX_ABSENT, SchemaBook, look_up_missing


class Registry:
    """Has the ids below 5."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def register(self, subject: str, schema: str) -> int:
        raise AssertionError("readers register nothing")

    def look_up(self, number: int) -> str | None:
        self.asked.append(number)
        return "{}" if number < 5 else None


def test_garbage_costs_a_bounded_number_of_look_ups_a_batch() -> None:
    registry, book = Registry(), SchemaBook()
    garbage = [b"\0" + number.to_bytes(4, "big") for number in range(1000, 1000 + 3 * MAX_ABSENT)]
    sound = [b"\0\0\0\0\4"] * 2
    batch = Batch([None] * (len(garbage) + 2), [*garbage, *sound], range(len(garbage) + 2))
    numbers = list(named_ids(batch))
    assert numbers[0] == 4  # that of most messages comes first
    assert look_up_missing(book, registry, numbers) == MAX_ABSENT + 1
    assert registry.asked[0] == 4
    # Missing schemas are requested after new ones, and again: they may only have been late.
    registry.asked.clear()
    look_up_missing(book, registry, numbers[1 : MAX_ABSENT + 3])
    assert registry.asked == [*numbers[MAX_ABSENT + 1 : MAX_ABSENT + 3], *numbers[1 : MAX_ABSENT - 1]]
