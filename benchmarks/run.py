"""All figures of the main path in one run, as a table for people and as JSON.

    python -m benchmarks.run [a] [b] [c] [d] [e] [--rows N] [--smoke] [--json FILE]

    a  capture to encoded records, no broker      rows/s, rows per CPU-second, CPU seconds per stage
    b  the same into a real Kafka broker          rows/s, and the share of what Kafka's own tool reaches
    c  lag from commit to readable on Kafka       p50, p99 at 20,000 rows/s
    d  a topic to Delta tables                    rows/s for inserts and for updates
    e  peak memory of each process                a run and one ten times as long

Without letters, all of them. `--smoke` runs small versions of a to d and only checks that they complete with
the right number of rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import broker, capture_path, lag, memory, to_delta
from benchmarks.capture_path import Case
from benchmarks.rig import ROOT, end_in_order, use_repository
from benchmarks.show import Progress, Ticker, machine, short, table

PARTS: Final = "abcde"
NOWHERE: Final = "kafka://127.0.0.1:1/bench"
"""A sink URI for runs without a broker. It is parsed but never used."""
GOALS: Final = {"a": 800_000, "p50_ms": 300, "p99_ms": 800}


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run."""

    narrow: int = 10_000_000
    wide: int = 1_000_000
    broker: int = 4_000_000
    lag_rate: int = 20_000
    lag_s: float = 60.0
    warm_up_s: float = lag.WARM_UP_S
    delta: int = 1_000_000
    memory: int = 1_000_000
    memory_delta: int = 1_200_000
    """More rows than one commit of the consumer, so that the shorter run fills all buffers as well."""


SMOKE: Final = Sizes(20_000, 5_000, 20_000, 2_000, 19.0, 1.0, 5_000, 5_000, 2_000)
"""Its lag runs for so many seconds that rows still come after the pipeline has started."""


def cases(sizes: Sizes, smoke: bool) -> list[Case]:
    """The cases of (a)."""
    found = [
        Case(log, rows, protocol)
        for log, rows in (("narrow", sizes.narrow), ("wide", sizes.wide))
        for protocol in ("open-protocol", "canal-json")
    ]
    return found[:1] if smoke else found


def encoded(sizes: Sizes, smoke: bool, progress: Progress) -> list[dict[str, Any]]:
    """(a)"""
    return [capture_path.measure(case, NOWHERE, "count", progress) for case in cases(sizes, smoke)]


def into_broker(bootstrap: str, sizes: Sizes, smoke: bool, progress: Progress) -> list[dict[str, Any]]:
    """(b), with Kafka's own tool on the same messages right after each run."""
    found = []
    for protocol in ("open-protocol",) if smoke else ("open-protocol", "canal-json"):
        topic = broker.new_topic(bootstrap)
        case = Case("narrow", sizes.broker, protocol)
        run = capture_path.measure(case, f"kafka://{bootstrap}/{topic}", "timed", progress)
        progress(f"Kafka's own tool, {protocol}")
        tool = broker.perf_tool(bootstrap, broker.committed_values(bootstrap, topic), run["messages"])
        broker.delete_topic(bootstrap, topic)
        mb_per_s = run["bytes"] / run["wall_s"] / 1e6
        share = {"share_of_tool": round(mb_per_s / tool["mb_per_s"], 3), "mb_per_s": round(mb_per_s, 1)}
        found.append(run | share | {"kafka_tool": tool})
    return found


def lags(bootstrap: str, sizes: Sizes, smoke: bool, progress: Progress) -> list[dict[str, Any]]:
    """(c)"""
    return [
        lag.measure(
            bootstrap,
            progress,
            rate=sizes.lag_rate,
            seconds=sizes.lag_s,
            warm_up_s=sizes.warm_up_s,
            protocol=protocol,
        )
        for protocol in (("open-protocol",) if smoke else ("open-protocol", "canal-json"))
    ]


def check(found: dict[str, Any]) -> list[str]:
    """The errors in the numbers of rows of a run. Empty: none."""
    wrong = [
        f"{part}: {run['quarantined']} rows in quarantine"
        for part in "ab"
        for run in found.get(part, [])
        if run["quarantined"]
    ]
    wrong += [
        f"{part}: {run['rows']} rows delivered of {run['rows_asked']}"
        for part in "ab"
        for run in found.get(part, [])
        if run["rows"] < run["rows_asked"]
    ]
    wrong += [
        f"c: {run['rows_read']} rows read of {run['rows']}"
        for run in found.get("c", [])
        if run["rows_read"] < run["rows"]
    ]
    wrong += [
        f"d: {run['rows']} rows applied of {run['rows_expected']}"
        for run in found.get("d", [])
        if run["rows"] != run["rows_expected"]
    ]
    return wrong


# --- the table -----------------------------------------------------------------------------------------


def report(found: dict[str, Any]) -> str:
    """The figures as one table, with the CPU seconds of (a) and (b) per stage below it."""
    lines = [["", "what", "figure", "goal", "remarks"]]
    for run in found.get("a", []):
        goal = f">= {GOALS['a']:,}" if run["log"] == "narrow" else ""
        remark = f"{short(run['rows_per_cpu_s'])} rows per CPU-second; most CPU: {run['bottleneck']}"
        lines.append(["a", _named(run), f"{short(run['rows_per_s'])} rows/s", goal, remark])
    for run in found.get("b", []):
        tool = run["kafka_tool"]
        remark = f"{run['mb_per_s']:.0f} MB/s, {run['share_of_tool']:.0%} of Kafka's own tool"
        remark += f" ({tool['mb_per_s']:.0f} MB/s); most CPU: {run['bottleneck']}"
        lines.append(["b", _named(run), f"{short(run['rows_per_s'])} rows/s", "", remark])
    for run in found.get("c", []):
        figure = f"p50 {run['p50_ms']} ms, p99 {run['p99_ms']} ms"
        goal = f"<= {GOALS['p50_ms']}, <= {GOALS['p99_ms']}"
        remark = f"max {run['max_ms']} ms; {run['cores_used']} cores"
        lines.append(["c", f"lag, {run['protocol']}, {run['rate']:,} rows/s", figure, goal, remark])
    for run in found.get("d", []):
        remark = f"{short(run['rows_per_cpu_s'])} rows per CPU-second; {run['snapshots']} snapshots"
        name = f"to Delta, {short(run['rows'])} {run['kind']}"
        lines.append(["d", name, f"{short(run['rows_per_s'])} rows/s", "", remark])
    for role, peak in found.get("e", {}).get("peaks", {}).items():
        figure = f"{peak['once_mb']:.0f} -> {peak['longer_mb']:.0f} MB"
        lines.append(["e", f"peak memory, {role}", figure, "flat", "flat" if peak["flat"] else "grows"])
    return "\n\n".join([table(lines), *_stage_tables(found)])


def _named(run: dict[str, Any]) -> str:
    return f"{run['log']}, {run['protocol']}, {short(run['rows'])} rows"


def _stage_tables(found: dict[str, Any]) -> list[str]:
    runs = [(part, run) for part in "ab" for run in found.get(part, [])]
    if not runs:
        return []
    stages = list(dict.fromkeys(stage for _, run in runs for stage in run["cpu_s_by_stage"]))
    heading = ["CPU us a row", *(f"{part} {run['log']} {run['protocol']}" for part, run in runs)]
    lines = [heading]
    for stage in stages:
        cells = [f"{run['cpu_s_by_stage'].get(stage, 0.0) / run['rows'] * 1e6:.3f}" for _, run in runs]
        lines.append([stage, *cells])
    lines.append(["all", *(f"{run['cpu_s'] / run['rows'] * 1e6:.3f}" for _, run in runs)])
    return [table(lines)]


def machine_line(facts: dict[str, Any]) -> str:
    """The machine in one line."""
    versions = ", ".join(f"{name} {number}" for name, number in facts["packages"].items())
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB, {facts['system']}, "
        f"Python {facts['python']}, Java {facts['java']}, {versions}; load before: {facts['load_before']:.2f}"
    )


# --- the command line ----------------------------------------------------------------------------------


def measure(parts: Sequence[str], sizes: Sizes, smoke: bool, progress: Progress) -> dict[str, Any]:
    """The figures of the requested parts."""
    found: dict[str, Any] = {}
    if "a" in parts:
        found["a"] = encoded(sizes, smoke, progress)
    with broker.running_broker() if set(parts) & set("bcde") else nullcontext("") as bootstrap:
        if "b" in parts:
            found["b"] = into_broker(bootstrap, sizes, smoke, progress)
        if "c" in parts:
            found["c"] = lags(bootstrap, sizes, smoke, progress)
        if "d" in parts:
            found["d"] = to_delta.measure(bootstrap, sizes.delta, progress)
        if "e" in parts:
            found["e"] = memory.measure(bootstrap, sizes.memory, sizes.memory_delta, progress)
    return found


def sizes_of(options: argparse.Namespace) -> Sizes:
    """The sizes that the options ask for."""
    if options.smoke:
        return SMOKE
    if not options.rows:
        return Sizes()
    rows: int = options.rows
    return Sizes(rows, max(1, rows // 10), rows, delta=rows, memory=rows, memory_delta=max(1, rows // 5))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="letters of the parts; default all")
    parser.add_argument("--rows", type=int, default=0, help="narrow rows of every part (wide: a tenth)")
    parser.add_argument("--smoke", action="store_true", help="everything small; checks rows, not speed")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench.json", help="where to write")
    options = parser.parse_args()
    parts = [letter for part in options.parts for letter in part] or list("abcd" if options.smoke else PARTS)
    if set(parts) - set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}")
    use_repository()
    end_in_order()
    # Compile kernels now, so that they are not compiled during a measurement.
    subprocess.run([sys.executable, "-m", "tidegate.kernel"], check=True, stdout=subprocess.DEVNULL)
    facts, ticker = machine(), Ticker()
    if facts["load_before"] > 1.0:
        print(f"Note: the machine is busy (load {facts['load_before']:.1f}).", file=sys.stderr)
    found = measure(parts, sizes_of(options), options.smoke, ticker)
    ticker.close()
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"machine": facts, "command": sys.argv[1:], **found}, indent=1) + "\n")
    print(report(found))
    print(f"\n{machine_line(facts)}\n{os.path.relpath(options.json)}")
    wrong = check(found)
    for line in wrong:
        print(f"WRONG: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
