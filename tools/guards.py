"""Removes the guards of the pipeline one after another, and runs the tests that must fail without them.

python -m tools.guards                 removes each guard in turn; prints a table of what failed and what SURVIVED
python -m tools.guards --only NAME     only this guard; more than once: only these
python -m tools.guards --list          prints the guards and their tests, and runs nothing
python -m tools.guards --write         writes the table of docs/guarantees.md; a test fails if it is out of date

The guards are in tools/guards.txt. Each is removed from a copy of src, in which its lines must occur exactly once. The
tests are those of this tree, and import the copy. First they all run once with all guards in place, and must pass: a test
that fails anyway shows nothing. A guard without which all of its tests pass has SURVIVED: a test is missing. A guard that
cannot be tried, for example because a service of its test does not start, is reported, and the others are tried.

The copy is in build/guards and stays, so that the next run need not compile its kernels again. Only one run at a time may
use it. The exit code is 1 if a guard has survived, and 2 if a guard or a test is not as it should be, which may hide
that one would survive.
"""

from __future__ import annotations

import argparse
import ast
import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
LIST: Final = ROOT / "tools" / "guards.txt"
SOURCE: Final = ROOT / "src"
COPY: Final = ROOT / "build" / "guards"
PAGE: Final = ROOT / "docs" / "guarantees.md"
BLOCK: Final = re.compile(r"(<!-- guards, by tools/guards\.py -->\n).*?(<!-- end -->)", re.DOTALL)
TEST_S: Final = 300
"""How long one test may take. Without its guard a test may wait for what never comes."""
PASSED, FAILED = 0, 1
"""Exit codes of pytest. Others say that tests were not found, or could not be run."""
BROKEN: Final = re.compile(r"^(FAILED|ERROR) (\S+::.+?)(?: - .*)?$", re.MULTILINE)
"""A line of pytest about a test that has failed, or that could not be set up or taken down."""
MISNAMED: Final = re.compile(r"^E +(?:AttributeError|NameError)\b.*", re.MULTILINE)
"""A line of pytest about a name that does not exist: what replaced the guard is out of date."""


class Wrong(Exception):
    """The list, the source or a test is not as it should be, so that a run would show nothing."""


@dataclass(slots=True)
class Change:
    """Lines of the source, and those that replace them."""

    lines: list[str] = field(default_factory=list)
    instead: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Guard:
    """Lines that keep a promise, and the tests of which at least one must fail without them."""

    name: str
    promise: str
    says: str
    file: str = ""
    """Below src/tidegate."""
    where: str = ""
    """The function with these lines, after its class."""
    tests: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    def removed(self, text: str) -> str:
        """The text of its file without it. Raises Wrong unless each of its places occurs exactly once."""
        lines = text.splitlines()
        for change in self.changes:
            size = len(change.lines)
            places = [at for at in range(len(lines)) if lines[at : at + size] == change.lines]
            if len(places) != 1:
                found = f"{self.file} has these lines {len(places)} times, not once"
                raise Wrong(f"{self.name}: {found}:\n{_joined(change.lines)}")
            lines[places[0] : places[0] + size] = change.instead
        return _joined(lines)


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


# The list.


def guards(text: str) -> list[Guard]:
    """The guards of a list. Raises Wrong if it cannot be read."""
    found: list[Guard] = []
    promise = ""
    for number, line in enumerate(text.splitlines(), 1):
        word, _, rest = line.partition(" ")
        if not line or line[0] == "#":
            continue
        if word == "promise":
            promise = rest.partition(": ")[2]
        elif word == "guard":
            name, _, says = rest.partition(": ")
            found.append(Guard(name, promise, says))
        elif not found:
            raise Wrong(f"line {number} is above the first guard: {line}")
        elif not _takes(found[-1], line):
            raise Wrong(f"line {number} begins with no known word: {line}")
    return found


def _takes(guard: Guard, line: str) -> bool:
    """Add a line of the list to the guard above it. False: it is none."""
    word, _, rest = line.partition(" ")
    if word == "code":
        guard.file, _, guard.where = rest.partition(" ")
    elif word == "test":
        guard.tests.append(rest)
    elif line == "...":
        guard.changes.append(Change())
    elif line[0] in "-+":
        if not guard.changes:
            guard.changes.append(Change())
        change = guard.changes[-1]
        (change.lines if line[0] == "-" else change.instead).append(line[1:])
    else:
        return False
    return True


def known() -> list[Guard]:
    """The guards of tools/guards.txt."""
    return guards(LIST.read_text())


def functions(source: str) -> Mapping[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of a module and of its classes, by name."""
    found = {}
    for node in ast.parse(source).body:
        body = {node.name: node.body} if isinstance(node, ast.ClassDef) else {"": [node]}
        for name, members in body.items():
            for one in members:
                if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                    found[f"{name}.{one.name}" if name else one.name] = one
    return found


# The page.


def drawn(text: str) -> str:
    """The page with its table as it should be."""
    lines = [row("rule", "guard", "code", "fails without it"), row(*["---"] * 4)]
    before = ""
    for guard in known():
        tests = ", ".join(f"`{test}`" for test in guard.tests)
        promise = guard.promise if guard.promise != before else ""
        code = f"`{guard.file}`, `{guard.where}`"
        lines.append(row(promise, f"`{guard.name}`: {guard.says}", code, tests))
        before = guard.promise
    return BLOCK.sub(lambda found: f"{found[1]}\n{_joined(lines)}\n{found[2]}", text)


def row(*cells: str) -> str:
    """A line of a table."""
    return "| " + " | ".join(cells) + " |"


# A run.


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of src, the same as src and for this run alone."""
    COPY.mkdir(parents=True, exist_ok=True)
    with (COPY / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Wrong(f"another run uses {COPY}") from None
        _refresh(COPY / "src")
        yield COPY / "src"


def _refresh(copy: Path) -> None:
    """Make the copy what src is, apart from what was compiled there. Files that are the same keep their times."""
    wanted = {file.relative_to(SOURCE) for file in SOURCE.rglob("*") if _is_source(file)}
    present = {file.relative_to(copy) for file in copy.rglob("*") if _is_source(file)}
    for name in present - wanted:
        (copy / name).unlink()
    for name in wanted:
        if name not in present or (copy / name).read_bytes() != (SOURCE / name).read_bytes():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(SOURCE / name, copy / name)


def _is_source(file: Path) -> bool:
    return file.is_file() and "__pycache__" not in file.parts


def compiled(copy: Path) -> None:
    """Compile the copy's kernels, which takes minutes once. Inside a test they would use up its time."""
    log = COPY / "kernels.log"
    if _called([sys.executable, "-m", "tidegate.kernel"], copy, log):
        raise Wrong(f"the copy's kernels do not compile; see {log}")


def tested(tests: Sequence[str], copy: Path, log: Path, *options: str) -> int:
    """Run tests over the copy; returns pytest's exit code, and leaves what it printed in `log`."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--timeout", str(TEST_S), *options]
    return _called([*command, "-o", f"pythonpath={copy} .", *tests], copy, log)


def broken(tests: Sequence[str], copy: Path, log: Path) -> set[str]:
    """The ids of tests that do not pass with all guards in place. Raises Wrong if pytest could not run."""
    code = tested(tests, copy, log)
    found = {test for _, test in BROKEN.findall(log.read_text())}
    if code not in (PASSED, FAILED) or (code == FAILED and not found):
        raise Wrong(f"pytest has ended with {code} although all guards are in place; see {log}")
    return found


def tries(guard: Guard, test: str) -> bool:
    """Whether a test, by its id, is one of the guard's, which may be named without parameters."""
    return any(test == own or test.startswith((f"{own}[", f"{own}::")) for own in guard.tests)


def _called(command: Sequence[str], copy: Path, log: Path) -> int:
    paths = os.pathsep.join([str(copy), str(ROOT)])
    environment = {"PYTHONPATH": paths, "HYPOTHESIS_STORAGE_DIRECTORY": str(COPY / "hypothesis")}
    with log.open("w") as out:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return done.returncode


def without(guard: Guard, copy: Path) -> str:
    """The outcome of a guard's tests without the guard. Raises Wrong if they could not be run."""
    file, log = Path("tidegate") / guard.file, COPY / f"{guard.name}.log"
    text = guard.removed((SOURCE / file).read_text())
    compile(text, guard.file, "exec")
    try:
        (copy / file).write_text(text)
        code = tested(guard.tests, copy, log, "-x")
    finally:
        shutil.copy2(SOURCE / file, copy / file)
    if code == PASSED:
        return "SURVIVED"
    return judged(guard.name, code, log.read_text(), log)


def judged(name: str, code: int, said: str, log: Path) -> str:
    """The outcome of a run whose tests did not pass. `said`: what pytest printed. Raises Wrong if it shows
    nothing about the guard.
    """
    # A test whose fixtures cannot be set up, as without a service, has not tried what the guard prevents.
    if code != FAILED or "FAILED" not in {how for how, _ in BROKEN.findall(said)}:
        raise Wrong(f"{name}: pytest has ended with {code}, and no test has failed; see {log}")
    if misnamed := MISNAMED.search(said):
        raise Wrong(f"{name}: its lines in {LIST.name} name what is not there ({misnamed[0]}); see {log}")
    return "failed as it must"


def run(chosen: Sequence[Guard]) -> int:
    """Remove the chosen guards in turn. Returns the exit code of the module."""
    survived, wrong = 0, list[str]()
    with copied() as copy:
        tests = sorted({test for guard in chosen for test in guard.tests})
        log = COPY / "all.log"
        compiled(copy)
        began = time.monotonic()
        failing = broken(tests, copy, log)
        passed = f"{len(failing)} tests do not pass; see {log}" if failing else "the tests pass"
        print(f"with all guards in place {passed} ({time.monotonic() - began:.0f} s)\n", flush=True)
        print(row("guard", "code", "test", "without it"), row(*["---"] * 4), sep="\n", flush=True)
        for guard in chosen:
            began = time.monotonic()
            try:
                _check(guard, failing)
                outcome = without(guard, copy)
            except Wrong as error:
                outcome = "NOT TRIED"
                wrong.append(str(error))
            survived += outcome == "SURVIVED"
            code, seconds = f"{guard.file} {guard.where}", time.monotonic() - began
            print(row(guard.name, code, " ".join(guard.tests), f"{outcome} ({seconds:.0f} s)"), flush=True)
    print(f"\n{len(chosen)} guards, {survived} survived, {len(wrong)} not tried", *wrong, sep="\n")
    return 2 if wrong else int(survived > 0)


def _check(guard: Guard, failing: Collection[str]) -> None:
    mine = sorted(test for test in failing if tries(guard, test))
    if mine:
        raise Wrong(f"{guard.name}: {', '.join(mine)} does not pass although all guards are in place")


def main(arguments: Sequence[str]) -> int:
    """As the module says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    try:
        found = known()
        unknown = set(options.only) - {guard.name for guard in found}
        if unknown:
            raise Wrong(f"there is no guard {', '.join(sorted(unknown))}; see --list")
        chosen = [guard for guard in found if not options.only or guard.name in options.only]
        if options.write:
            PAGE.write_text(drawn(PAGE.read_text()))
        elif options.list:
            for guard in chosen:
                print(f"{guard.name}: {guard.says}\n    {guard.file} {guard.where}")
                print("".join(f"    {test}\n" for test in guard.tests), end="")
        else:
            return run(chosen)
    except Wrong as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
