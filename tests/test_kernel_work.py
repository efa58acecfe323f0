"""The benchmark of kernels gives work to every kernel that Python calls."""

from __future__ import annotations

import sys
from importlib import import_module

from benchmarks.kernel_work import works
from benchmarks.kernels import Meter, full_name, is_kernel

from tidegate.kernel import KERNEL_MODULES

INNER = {
    "codec.kernels.connect_kernels.bits_numbers",
    "codec.kernels.json_scan_kernels.hash_name",
    "codec.kernels.match_kernels.route_of",
}
"""Kernels that other kernels call."""
WITHOUT_WORK = {
    "puller.match.spill_kernels.log_waiting",
    "tidb.kernels.column.check_json",  # only for tests
    "tidb.kernels.row.decode_v1",  # rows that TiDB wrote before 4.0
}


def test_every_kernel_that_python_calls_has_work() -> None:
    for name in KERNEL_MODULES:
        import_module(name).warm()
    with Meter() as meter:
        for _, _, _, prepare in works(("wide",)):
            prepare()()
    modules = [one for name, one in sys.modules.items() if name.startswith("tidegate.")]
    every = {full_name(value) for module in modules for value in vars(module).values() if is_kernel(value)}
    assert sorted(every - meter.called - INNER - WITHOUT_WORK) == []
    assert not meter.called & WITHOUT_WORK, "and these have none"
