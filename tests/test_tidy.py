"""The repository checks itself: docstrings, links, citations, names that must not occur, known kernels."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterable
from configparser import ConfigParser
from functools import cache
from pathlib import Path

import pytest
from tools import kernel_docs, kernel_numbers
from tools.reference import layouts

from tidegate.codec.registry import CODECS
from tidegate.kernel import KERNEL_MODULES

ROOT = Path(__file__).parents[1]
SOURCES = sorted(p for p in (ROOT / "src/tidegate").rglob("*.py") if "proto" not in p.parts)
TREES = ("src", "tests", "benchmarks", "tools", "examples")
CODE = sorted(p for tree in TREES for p in (ROOT / tree).rglob("*.py") if "proto" not in p.parts)
CITED = re.compile(r"\bdocs/(?!design/|distributed-scheduling)\w[\w/-]*\.md(?:#[\w-]+)?")
"""A page of ours, and a heading on it. docs/design/ and distributed-scheduling.md are in pingcap/tiflow."""
NAME_MAX = 70
"""Characters of a test's name."""
PAPERS = ("fact" + "s", "SPE" + "C", "DESI" + "GN")
"""Spelled in parts, so that this file does not cite them either."""
BARE = re.compile(
    rf"\b(?i:{PAPERS[0]}),? (?:of )?\d|\({PAPERS[0]}(?:,| |: [A-Z])|\b{PAPERS[0]}/"
    rf"|\b(?:{PAPERS[1]}|{PAPERS[2]})\b|\b[GN][1-9]\b"
)
"""Citations of papers that are not in the repository."""
KAFKA = re.compile(r"kafka|confluent", re.IGNORECASE)
KAFKA_IS_THE_SUBJECT = (
    "sink/kafka/",  # the sink
    "sink/registry.py",  # finds the sink by the URI's scheme
    "config/",  # sink URIs, and the settings of [sink.kafka-config]
    "consumer/",  # reads topics with Kafka's client
    "cli/",  # help texts, with URIs as examples
    "verify/",  # a check through a real topic asks for a broker's address
    "schema_registry.py",  # the REST API is Confluent's
    "codec/protocols/avro/__init__.py",  # the wire format is Confluent's
    "codec/protocols/debezium/schema.py",  # the schemas are Kafka Connect's
    "codec/kernels/connect_kernels.py",  # the types are Kafka Connect's
)
"""Folders and files of the program that may name Kafka: docs/architecture.md#sinks."""
KAFKA_OF_TICDC = (
    "ErrKafkaTopicExprInvalid",  # an error code
    "pkg/sink/kafka/claimcheck",  # a folder of its sources
)
"""TiCDC's own names; any file may quote them."""
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])


def tracked() -> list[Path]:
    """Files of the repository, without those of an unpacked archive that has no git."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.splitlines()]


# One test for all files of a kind: a test for each file would be a quarter of all tests.


def found_in(paths: Iterable[Path], wrong: Callable[[Path], object]) -> dict[str, object]:
    """By file, what is wrong with it."""
    return {str(path.relative_to(ROOT)): found for path in paths if (found := wrong(path))}


def says_little(source: Path) -> bool:
    return len((ast.get_docstring(ast.parse(source.read_text())) or "").split()) < 4


def test_a_module_says_what_it_is() -> None:
    assert not found_in(SOURCES, says_little), "a module has a docstring, which says more than a name"


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them; a second one of the same name ends in -1."""
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#+ (.*)$", without_blocks(page.read_text()), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if name in found else name)
        found[name] = found.get(name, 0) + 1
    return names


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def broken(links: Iterable[str], base: Path) -> list[str]:
    """Links to a page, or to a heading of a page, that does not exist. `base`: the folder they begin at."""
    return [link for link in links if not leads_somewhere(link, base)]


def leads_somewhere(link: str, base: Path) -> bool:
    path, _, anchor = link.partition("#")
    page = base / path
    return page.exists() and (not anchor or (page.suffix == ".md" and anchor in anchors(page)))


def links_of(page: Path) -> list[str]:
    """The relative links of a page; one to a heading of the page itself begins with the page's name."""
    found = re.findall(r"\]\(([^)\s]+)\)", without_blocks(page.read_text()))
    inner = [link for link in found if not re.match(r"[a-z]+:", link)]
    return [page.name + link if link.startswith("#") else link for link in inner]


def test_links_between_pages_lead_somewhere() -> None:
    assert not found_in(PAGES, lambda page: broken(links_of(page), page.parent))


def test_what_code_cites_can_be_followed() -> None:
    assert not found_in(CODE, lambda file: broken(CITED.findall(file.read_text()), ROOT))


def test_what_is_cited_is_public_or_here() -> None:
    found = found_in([*CODE, *PAGES], lambda file: BARE.findall(file.read_text()))
    assert not found, "cite a page of docs/, or a file of TiDB, TiKV or TiCDC"


def test_a_broken_link_and_a_bare_citation_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# All `rows` & keys\n\n[a](#all-rows--keys) [b](#else) [c](gone.md) [d](https://x.org/y)\n"
    )
    assert broken(links_of(page), tmp_path) == ["page.md#else", "gone.md"]
    gone = "docs/" + "gone.md#here"
    cited = CITED.findall(f"See docs/glossary.md, {gone}; tiflow docs/design/x.md")
    assert cited == ["docs/glossary.md", gone]
    assert broken(cited, ROOT) == [gone]
    for bare in ("fact" + "s 6.2", "(fact" + "s, 3)", "G" + "4: nothing", "SPE" + "C M5", "DESI" + "GN 7"):
        assert BARE.search(bare), bare
    assert not BARE.search("facts = machine()  # G is a group, N a number, H1 a heading")


def test_no_code_compares_a_protocols_name() -> None:
    """Code asks the protocol's entry in the registry for what depends on the protocol."""
    for path in SOURCES:
        if "protocols" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare | ast.Dict | ast.Set | ast.Tuple | ast.List | ast.MatchValue):
                texts = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
                assert not texts & CODECS.keys(), f"{path}:{node.lineno}"


def test_no_owner_reaches_for_a_processor_of_its_capture() -> None:
    """Imports are checked by the contract; this finds an object that was passed in."""
    contracts = ConfigParser()
    contracts.read(ROOT / ".importlinter")
    rooms = contracts["importlinter:contract:owner"]["source_modules"].split()
    modules = [path for room in rooms for path in (ROOT / "src" / room.replace(".", "/")).rglob("*.py")]
    assert len(modules) > 20
    for module in modules:
        tree = ast.parse(module.read_text())
        reads = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not reads & {"processors", "processor_registry", "registry", "machine"}, (
            f"{module} reads a processor"
        )


def test_no_file_names_a_package_registry_or_a_path_of_one_machine() -> None:
    # Spelled in parts, so that this file does not name them either.
    forbidden = [
        "py" + "pi.org",
        "python" + "hosted.org",
        "repo1.maven" + ".org",
        "deb.debian" + ".org",
        "/wo" + "rk/main",
    ]
    for path in tracked():
        if path.suffix in (".gz", ".png") or not path.is_file():
            continue
        text = path.read_text(errors="replace")
        assert not [name for name in forbidden if name in text], path


def test_nothing_is_left_to_be_done_later() -> None:
    marker = "TO" + "DO"
    for path in SOURCES:
        assert marker not in path.read_text(), path


def names_kafka(text: str) -> bool:
    for name in KAFKA_OF_TICDC:
        text = text.replace(name, "")
    return KAFKA.search(text) is not None


def test_only_those_whose_subject_is_kafka_name_it() -> None:
    found = [str(p.relative_to(ROOT / "src/tidegate")) for p in SOURCES if names_kafka(p.read_text())]
    others = [name for name in found if not name.startswith(KAFKA_IS_THE_SUBJECT)]
    assert not others, "say what the sink can do in sink/base.py, and ask the sink"
    unused = [one for one in KAFKA_IS_THE_SUBJECT if not any(name.startswith(one) for name in found)]
    assert not unused, "these exceptions are not needed any more"


def test_a_module_that_names_kafka_is_found() -> None:
    for text in ("isinstance(sink, KafkaSink)", "# librdkafka waits", '"""For KAFKA."""', "confluent_kafka"):
        assert names_kafka(text), text
    assert not names_kafka("CDC:ErrKafkaTopicExprInvalid, as TiCDC's pkg/sink/kafka/claimcheck")


def test_every_module_with_kernels_is_warmed_at_setup() -> None:
    compiled = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for path in SOURCES
        if re.search(r"^@kernel$", path.read_text(), re.MULTILINE)
    }
    known = {name for name in KERNEL_MODULES if name.startswith("tidegate.")}
    folders = {name.rsplit(".", 1)[0] for name in known}
    assert {name.rsplit(".", 1)[0] for name in compiled} <= folders | {"tidegate"}, "add it to KERNEL_MODULES"


def test_kernels_name_their_numbers_and_have_short_argument_lists() -> None:
    found = [f"{one.file}:{one.line}: {one.kind}: {one.text}" for one in kernel_numbers.places()]
    assert not found, "name them: kernel_ascii, a Layout, or a constant next to its meaning"


def test_bare_numbers_in_a_kernel_are_found(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(
        "@kernel\n"
        "def walk(a, b, c, d, e, f, g, h):\n"
        "    if kind == np.uint64(5) or load_u8(at) == 34 or length == 8:\n"
        "        store_u8(out, 92)\n"
        "    return load_i64(entry + 24) + load_i32(ends + 4 * i + 4) + load_u64(spans + 32 * i)\n"
    )
    kinds = sorted(one.kind for one in kernel_numbers.places(tmp_path))
    assert kinds == ["ascii", "ascii", "enum", "offset", "offset", "params"]


def test_kernels_say_what_they_read_and_write_their_bound_and_twin() -> None:
    places = list(kernel_docs.places())
    assert not [f"{one.file}:{one.line}: {one.rule}: {one.text}" for one in places], (
        "see tools/kernel_docs.py"
    )


def test_a_kernel_that_does_not_explain_itself_is_found(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(
        "@inline\ndef put(out, n):\n    pass\n"
        "@inline\ndef skip(out):\n    '''Skip.'''\n"
        "@shared\ndef bare(rows):\n    '''Walk the rows. Reads them. Bound: a row.'''\n"
        "@kernel\ndef gone(rows):\n    '''It. Reads and writes rows. Bound: a. Twin: `tests.gone.walk`.'''\n"
        "@kernel\ndef file(rows):\n    '''Walk. Reads a. Writes b. Bound: c. Twin: `tidy.py`.'''\n"
        "@kernel\ndef none(rows):\n    '''Walk. Reads and writes rows. Bound: a. Twin: none.'''\n"
        "@kernel\ndef good(rows):\n    '''Walk. Reads and writes rows. Bound: a row.\n"
        "    Twins: `tests.test_tidy.tracked` and `tools`. Trick: none.'''\n"
        "@kernel\ndef alone(rows):\n"
        "    '''Walk. Reads a. Writes b. Bound: c. Twin: none, because it moves bytes.'''\n"
    )
    assert [(one.rule, one.text) for one in kernel_docs.places(tmp_path)] == [
        ("params", "put: n"),
        ("sentence", "put: no docstring"),
        ("sentence", "skip: Skip."),
        ("contract", "bare: no Writes, Twin"),
        ("twin", "gone: tests.gone.walk"),
        ("twin", "file: no dotted path"),
        ("twin", "none: none, without a reason"),
    ]


def test_a_method_is_a_twin_and_a_module_is_none() -> None:
    assert kernel_docs.exists("tidegate.puller.frontier.Frontier.advance")
    assert not kernel_docs.exists("tidegate.puller.frontier")
    assert not kernel_docs.exists("tidegate.puller.frontier.Frontier.rise")


def test_constants_of_a_layout_are_named_after_its_fields() -> None:
    for place, module, found in layouts():
        for name, layout in found:
            words = range(layout.size // 8)
            for number, (field, offset) in enumerate(zip(layout.fields, layout.offsets(), strict=True)):
                if not field.startswith("_"):
                    value = getattr(module, layout.constant(field))
                    assert value == offset or (value == number and number in words), (
                        f"{place}: {name}.{field}"
                    )


def test_the_lock_file_holds_every_dependency_with_its_hash() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    pinned = re.findall(r"^([a-zA-Z0-9_.-]+)==[^\s;\\]+.*?\\\n\s+--hash=sha256:", lock, re.MULTILINE)
    assert len(pinned) == len(re.findall(r"^[a-zA-Z0-9_.-]+==", lock, re.MULTILINE))


def long_names(code: str) -> list[str]:
    """The tests of a module whose names are too long."""
    names = re.findall(r"^\s*(?:async )?def (test_\w+)", code, re.MULTILINE)
    return [name for name in names if len(name) > NAME_MAX]


def test_the_name_of_a_test_fits_into_a_line_of_a_report() -> None:
    tests = (path for path in CODE if path.name.startswith("test_"))
    assert not found_in(tests, lambda path: long_names(path.read_text()))


def test_a_test_with_a_long_name_is_found() -> None:
    fits, long = "test_" + "x" * (NAME_MAX - 5), "test_" + "y" * (NAME_MAX - 4)
    code = f"def {fits}():\n    pass\nclass Some:\n    async def {long}(self):\n        {long}x()\n"
    assert long_names(code) == [long]
