"""Computes a table's definition after a change of its partitions, before the job has written it. Pure.

TiDB writes the new definition into the job only when the job is done. But sessions write to the new
partitions some steps earlier (`ddl`). So `partitions_after` makes the definition from the current one and the
job's arguments, which are a list in version 1 and an object in version 2. Everything that concerns rows is
exact: table id, partitions and their order, expression. Indexes are updated when the job is done. Source:
TiDB `pkg/ddl/partition.go` (`onReorganizePartition`, `getReorganizedDefinitions`).
"""

from __future__ import annotations

from typing import Any, Final

DROP_PARTITION: Final = 20
TRUNCATE_PARTITION: Final = 23
REORGANIZE_PARTITION: Final = 64
PARTITION_BY: Final = 71
REMOVE_PARTITIONING: Final = 72
REORGANISATIONS: Final = frozenset({REORGANIZE_PARTITION, PARTITION_BY, REMOVE_PARTITIONING})
"""Kinds that copy rows into new partitions."""

_PASSING: Final = frozenset(
    {"adding_definitions", "dropping_definitions", "original_partition_ids_order", "states", "new_table_id"}
    | {"ddl_action", "ddl_state"}
)
"""Members that a PartitionInfo has only while a job runs."""


def partitions_after(info: dict[str, Any], action: int, args: Any) -> dict[str, Any]:
    """The definition after the job. Equal to `info` if that has the new partitions already.

    Raises KeyError, IndexError, TypeError or ValueError for arguments that TiDB would not write.
    """
    if action == TRUNCATE_PARTITION:
        new_ids = _truncated(args)
        return _with(info, [{**d, "id": new_ids.get(d["id"], d["id"])} for d in _definitions(info)])
    if action == DROP_PARTITION:
        names = _names(args)
        return _with(info, [d for d in _definitions(info) if d["name"]["L"] not in names])
    if action == REORGANIZE_PARTITION:  # for hash and key partitions also ADD and COALESCE PARTITION
        return _with(info, _reorganised(_definitions(info), _names(args), _new(args)["definitions"]))
    if action == PARTITION_BY:
        # Members that pass would make it differ from the finished job's definition: another version.
        new = {key: value for key, value in _new(args).items() if key not in _PASSING}
        return {**info, "id": _new(args)["new_table_id"], "partition": new}
    assert action == REMOVE_PARTITIONING
    (whole,) = _new(args)["definitions"]  # the only definition becomes the table
    return {**info, "id": whole["id"], "partition": None}


def _with(info: dict[str, Any], definitions: list[dict[str, Any]]) -> dict[str, Any]:
    if definitions == _definitions(info):
        return info
    kept = {key: value for key, value in info["partition"].items() if key not in _PASSING}
    return {**info, "partition": {**kept, "definitions": definitions, "num": len(definitions)}}


def _reorganised(
    before: list[dict[str, Any]], names: set[str], new: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Put the new partitions in the place of the first removed one."""
    if {d["id"] for d in new} <= {d["id"] for d in before}:
        return before  # a catalogue that was read from the store between the steps has them already
    first = [d["name"]["L"] in names for d in before].index(True)
    # The order of partitions counts, because TiDB looks a row's range up by it.
    stay = [d for d in before[first:] if d["name"]["L"] not in names]
    return [*before[:first], *new, *stay]


def _definitions(info: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = info["partition"]["definitions"]
    return found


def _truncated(args: Any) -> dict[int, int]:
    """The new partition id of each old one."""
    if isinstance(args, dict):
        return dict(zip(args["old_partition_ids"], args["new_partition_ids"], strict=True))
    return dict(zip(args[0], args[1], strict=True))


def _names(args: Any) -> set[str]:
    """The names of the removed partitions, in lower case."""
    found: list[str] = args["part_names"] if isinstance(args, dict) else args[0]
    return {name.lower() for name in found}


def _new(args: Any) -> dict[str, Any]:
    """The PartitionInfo in the arguments of a reorganisation."""
    found: dict[str, Any] = args["part_info"] if isinstance(args, dict) else args[1]
    return found
