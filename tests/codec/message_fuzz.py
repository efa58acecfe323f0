"""Messages of every protocol, recorded and damaged, through the batch decoder in a child process.

    python -m tests.codec.message_fuzz [--inputs 1000000] [--seed 1] [--protocol NAME]

Each damaged message is between undamaged ones. The batch decoder must come to what the plain one says of each
message alone, which decides what is bad; neither may raise, and the child may not grow beyond MEMORY. Exit
code 0: no crash, no disagreement. `--inputs` counts for each protocol.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from tests.golden_folder import OURS, lines
from tests.tidb.row_fuzz import in_child
from tidegate.codec.base import Batch, CodecOptions, Decoded, describe
from tidegate.codec.decode import decoder
from tidegate.codec.entry import ReadCodec, RowCodec
from tidegate.codec.registry import CODECS, read_protocols
from tidegate.errors import InvalidInput

Pair = tuple[bytes | None, bytes | None]

MEMORY: Final = 2 << 30
"""Bytes of address space a fuzzing child may have beyond what it begins with."""
BATCH: Final = 200
DAMAGED: Final = 0.5
"""The share of a batch that is damaged."""
CORPUS: Final = 4_000
"""Recorded messages of a protocol at most."""
AT_ONCE: Final = 50
"""So many of them for some time, so that their tables are known to the decoder."""
BATCHES: Final = 10
"""How long that is."""
PARTS: Final = ("messages", "messages_new")
SPLICES: Final = (
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"-", b"0", b"1e999", b"\\ud800",
    b"\xff", b"\x00", b"9" * 30, b"[" * 2_000, b"\x7f\xff\xff\xff\xff\xff\xff\xff", b"\xff" * 8, b"\x00" * 8,
)  # fmt: skip


@cache
def corpus(protocol: str) -> list[Pair]:
    """Messages that TiCDC sent, for all configurations of a protocol; for some also our own messages."""
    found: dict[Pair, None] = {}
    codec = CODECS[protocol]
    assert isinstance(codec, ReadCodec)
    for part in PARTS if codec.schemas is None else ():
        for name in sorted(path.name.partition(".")[0] for path in (OURS / part).iterdir()):
            records = lines(f"{part}/{name}", ours=True)
            if next(records).get("protocol") == protocol:
                for record in records:
                    found |= dict.fromkeys(_pairs(record))
    own = [] if found else _own(codec)
    pairs = [*found, *own]
    random.Random(protocol).shuffle(pairs)
    return pairs[:CORPUS]


def _pairs(record: dict[str, Any]) -> Iterator[Pair]:
    for one in record.get("messages", [record]):
        if one.get("value") is not None:
            key = one.get("key")
            yield bytes.fromhex(key) if key else None, bytes.fromhex(one["value"])


def _own(codec: ReadCodec) -> list[Pair]:
    """Messages of a protocol that only Tidegate writes, or whose schemas are elsewhere."""
    from tests.contracts.codec_rows import golden_rows

    assert isinstance(codec, RowCodec), "of one that is read only there are recorded messages"
    found = list[Pair]()
    flavours = [replace(codec.options(), flavour=flavour) for flavour in codec.flavours]
    for options in (codec.options(), *map(turned, flavours)):
        encoder = codec.encoder(options)
        for row in (row for rows in golden_rows() for row in rows[:20]):
            with suppress(InvalidInput):  # of a delete that this protocol cannot say
                found += [(message.key, message.value) for message in encoder.encode_rows([row])]
    return found


def turned(usual: CodecOptions) -> CodecOptions:
    """The options with every switch of their flavour turned, and of every choice the last word."""
    switches = {
        f.name: not f.default
        for f in fields(usual)
        if isinstance(f.default, bool) and f.metadata.get("flavour", usual.flavour) == usual.flavour
    }
    words = {f.name: f.metadata["words"][-1] for f in fields(usual) if "words" in f.metadata}
    return replace(usual, **switches, **words)


def definitions(codec: ReadCodec, options: CodecOptions) -> Iterator[Batch]:
    """The tables that a reader of the recorded rows must know if the rows do not describe them."""
    from tests.contracts.codec_rows import golden_rows

    if codec.definitions is not None:
        for rows in golden_rows():
            stated = codec.definitions.encode(rows[0].table, options, 0)
            yield Batch([stated.key], [stated.value], [0])


def damaged(pair: Pair, other: Pair, dice: random.Random) -> Pair:
    """A message with one to three things wrong."""
    parts = [bytearray(part or b"") for part in pair]
    for _ in range(dice.choice((1, 1, 2, 3))):
        which = dice.randrange(2) if parts[0] else 1
        part = parts[which]
        at = dice.randrange(len(part) + 1)
        match dice.randrange(8):
            case 0 if part:
                part[min(at, len(part) - 1)] ^= 1 << dice.randrange(8)
            case 1:
                del part[at : at + dice.choice((1, 1, 2, 8, 100))]
            case 2:
                part[at:at] = dice.choice(SPLICES)
            case 3:
                part[at : at + 1] = dice.choice(SPLICES)
            case 4:
                del part[at:]
            case 5:
                part[at:at] = part[dice.randrange(len(part) + 1) :][:100]
            case 6:
                part[at:] = (other[which] or b"")[at:]
            case 7:
                digits = [i for i in range(len(part)) if part[i] in b"0123456789"]
                if digits:
                    part[dice.choice(digits)] = dice.choice(b"0123456789-.eE")
    key, value = bytes(parts[0]), bytes(parts[1])
    odd = dice.random()
    if odd < 0.01:
        return value, key
    return (key if pair[0] is not None or key else None), (None if odd > 0.99 else value)


@dataclass(slots=True)
class Findings:
    """Counts of the inputs by outcome."""

    inputs: int = 0
    bad: int = 0
    grown: int = 0
    wrong: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)


def fuzz(protocol: int, seed: int, number: int) -> Findings:
    """Decode `number` damaged messages of the protocol with that place in the registry, among sound ones."""
    name = read_protocols()[protocol]
    codec = CODECS[name]
    assert isinstance(codec, ReadCodec)
    found, dice, pairs = Findings(), random.Random(seed), list[Pair]()
    options = codec.options()
    batched, plain = decoder(options), codec.decoder(options)
    for stated in definitions(codec, options):
        assert batched.decode(stated) == plain.decode(stated) == Decoded()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while found.inputs < number:
        if not found.kinds or dice.random() < 1 / BATCHES:
            first = dice.randrange(len(corpus(name)))
            pairs = corpus(name)[first : first + AT_ONCE]
        batch: list[Pair] = []
        for _ in range(BATCH):
            pair = dice.choice(pairs)
            if dice.random() < DAMAGED:
                pair = damaged(pair, dice.choice(pairs), dice)
                found.inputs += 1
            batch.append(pair)
        keys, values = [key for key, _ in batch], [value for _, value in batch]
        taken = describe(batched.decode(Batch(keys, values, range(len(batch)))))
        alone = describe(plain.decode(Batch(keys, values, range(len(batch)))))
        for one in alone:
            found.kinds[one["kind"]] += 1
        found.bad += sum(one["kind"] == "bad" for one in alone)
        if repr(taken) != repr(alone):
            found.wrong += _differences(taken, alone, batch, seed)
            if len(found.wrong) > 20:
                break
    found.grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    return found


def _differences(
    taken: list[dict[str, Any]], alone: list[dict[str, Any]], batch: list[Pair], seed: int
) -> list[str]:
    by_offset: dict[int, list[list[dict[str, Any]]]] = {}
    for side, found in enumerate((taken, alone)):
        for one in found:
            by_offset.setdefault(one["offset"], [[], []])[side].append(one)
    return [
        f"seed {seed}: {batch[offset]!r}: batch {one!r}, alone {other!r}"[:4_000]
        for offset, (one, other) in sorted(by_offset.items())
        if repr(one) != repr(other)
    ]


def _limited(protocol: int, seed: int, number: int, answer: Connection) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    answer.send(fuzz(protocol, seed, number))


def run(protocol: str, seed: int, number: int) -> Findings:
    """`fuzz` in a child process."""
    corpus(protocol)
    work: Callable[..., None] = _limited
    found: Findings = in_child(work, read_protocols().index(protocol), seed, number)
    return found


def main() -> int:
    """Fuzz for as many inputs as asked, in runs of 100,000."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--protocol", choices=read_protocols())
    options = parser.parse_args()
    wrong = 0
    for protocol in [options.protocol] if options.protocol else read_protocols():
        began, total = time.monotonic(), Findings()
        for at in range(0, options.inputs, 100_000):
            found = run(protocol, options.seed + at, min(100_000, options.inputs - at))
            total.inputs += found.inputs
            total.bad += found.bad
            total.wrong += found.wrong
            total.kinds += found.kinds
            total.grown = max(total.grown, found.grown)
        kinds = ", ".join(f"{kind} {number:,}" for kind, number in total.kinds.most_common())
        print(
            f"{protocol}: {total.inputs:,} damaged messages of {len(corpus(protocol)):,} recorded, "
            f"{len(total.wrong)} disagreements, memory +{total.grown >> 20} MiB, "
            f"{time.monotonic() - began:.0f} s: {kinds}",
            flush=True,
        )
        for line in total.wrong[:5]:
            print(json.dumps(line))
        wrong += len(total.wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
