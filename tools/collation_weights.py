"""Make `src/tidegate/tidb/types/collation_weights.bin`: from a MariaDB server's WEIGHT_STRING, and Unicode's table.

    tools/services start mariadb --dir DIR
    .venv/bin/python -m tools.collation_weights PORT allkeys-9.0.0.txt

TiDB's weights are from MySQL's tables, and MariaDB still has the same weights for three collations. Those of
utf8mb4_0900_ai_ci are the primary weights of Unicode's default table of version 9.0.0, `allkeys.txt`, which
the package pyuca 1.2 has as `pyuca/allkeys-9.0.0.txt`. Tests compare the result with TiDB's recorded sort keys
(`tests/golden/keys/collation`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pymysql

from tidegate.tidb.types import weights

TARGET = Path(__file__).parents[1] / "src" / "tidegate" / "tidb" / "types" / "collation_weights.bin"
STEP = 500
SIGNS = [code for code in range(0x10000) if not 0xD800 <= code < 0xE000]


def dump(cursor: pymysql.cursors.Cursor, text: str, codes: Iterable[int]) -> dict[int, bytes]:
    """Weights by code point. `text`: SQL with {} for the character's UTF-8 in hex."""
    found: dict[int, bytes] = {}
    todo = list(codes)
    for at in range(0, len(todo), STEP):
        part = todo[at : at + STEP]
        shown = [f"HEX(WEIGHT_STRING({text.format(chr(code).encode().hex())}))" for code in part]
        cursor.execute("SELECT " + ",".join(shown))
        answer = cursor.fetchone() or ()
        found |= {code: bytes.fromhex(one) for code, one in zip(part, answer, strict=True)}
    return found


def primary(allkeys: Iterable[str]) -> dict[int, bytes]:
    """The primary weights of single characters in Unicode's table without zeros, at most 8 (U+FDFA has more)."""
    found: dict[int, bytes] = {}
    for line in allkeys:
        entry = re.match(r"([0-9A-F]+)\s*;\s*(\[.*\])", line)
        if entry and int(entry[1], 16) < weights.LISTED_900:
            each = re.findall(r"\[[.*]([0-9A-F]+)", entry[2])[:8]
            found[int(entry[1], 16)] = bytes.fromhex("".join(one for one in each if int(one, 16)))
    return found


def main() -> int:
    """Write the file."""
    port, table = int(sys.argv[1]), Path(sys.argv[2])
    unicode_9 = primary(table.read_text(encoding="utf-8").splitlines())
    connection = pymysql.connect(host="127.0.0.1", port=port, user="root", charset="utf8mb4")
    with connection, connection.cursor() as cursor:
        general = dump(cursor, "_utf8mb4 0x{} COLLATE utf8mb4_general_ci", SIGNS)
        unicode = dump(cursor, "_utf8mb4 0x{} COLLATE utf8mb4_unicode_ci", SIGNS)
        known = [code for code in SIGNS if chr(code).encode("gbk", "ignore")]
        gbk = dump(cursor, "CONVERT(_utf8mb4 0x{} USING gbk) COLLATE gbk_chinese_ci", known)
    gbk[ord("\\")] = b"\\"  # MariaDB returns the weight of a closing bracket for it
    TARGET.write_bytes(weights.packed(general, unicode, gbk, unicode_9))
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
