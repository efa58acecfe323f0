"""Make `src/tidegate/tidb/types/collation_weights.bin` from what a MariaDB server says WEIGHT_STRING is.

    tools/services start mariadb --dir DIR
    .venv/bin/python -m tools.collation_weights PORT

TiDB has its weights from MySQL's tables, and MariaDB has kept those of the three collations here as they
were; TiDB's recorded sort keys (`tests/golden/keys/collation`) say whether that holds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import pymysql

from tidegate.tidb.types import weights

TARGET = Path(__file__).parents[1] / "src" / "tidegate" / "tidb" / "types" / "collation_weights.bin"
STEP = 500
SIGNS = [code for code in range(0x10000) if not 0xD800 <= code < 0xE000]


def dump(cursor: pymysql.cursors.Cursor, text: str, codes: Iterable[int]) -> dict[int, bytes]:
    """Weights by code point; `text` is SQL with {} for the sign's UTF-8 in hex."""
    found: dict[int, bytes] = {}
    todo = list(codes)
    for at in range(0, len(todo), STEP):
        part = todo[at : at + STEP]
        shown = [f"HEX(WEIGHT_STRING({text.format(chr(code).encode().hex())}))" for code in part]
        cursor.execute("SELECT " + ",".join(shown))
        answer = cursor.fetchone() or ()
        found |= {code: bytes.fromhex(one) for code, one in zip(part, answer, strict=True)}
    return found


def main() -> int:
    """Write the file."""
    port = int(sys.argv[1])
    connection = pymysql.connect(host="127.0.0.1", port=port, user="root", charset="utf8mb4")
    with connection, connection.cursor() as cursor:
        general = dump(cursor, "_utf8mb4 0x{} COLLATE utf8mb4_general_ci", SIGNS)
        unicode = dump(cursor, "_utf8mb4 0x{} COLLATE utf8mb4_unicode_ci", SIGNS)
        known = [code for code in SIGNS if chr(code).encode("gbk", "ignore")]
        gbk = dump(cursor, "CONVERT(_utf8mb4 0x{} USING gbk) COLLATE gbk_chinese_ci", known)
    gbk[ord("\\")] = b"\\"  # MariaDB's answer for it is that of a closing bracket
    TARGET.write_bytes(weights.packed(general, unicode, gbk))
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
