"""Names of schemas, tables and changefeeds as file names that are safe on all common file systems.

Some file systems ignore case, some rewrite Unicode (NFC or NFD), some forbid certain characters, a dot at the
end or the names of devices, and all of them limit a name's length. A part made here is plain ASCII and has at
most `PATH_PART_MAX` bytes. No two names get parts that are equal when case or Unicode form is ignored.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final
from urllib.parse import quote

PATH_PART_MAX: Final = 200
"""Bytes of a part. File systems allow 255, some of their tools fewer."""
_DEVICE: Final = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)", re.IGNORECASE)
"""Names that Windows treats as devices, with any suffix."""


def path_part(name: str) -> str:
    """Letters, digits and . _ ~ - unchanged, other bytes as =XX; capital letters add =- and a mask.

    It is percent-encoding with another character: delta-rs 1.6 cannot open a directory whose name contains a
    percent sign. The mask is a hexadecimal number whose bit i says that character i is a capital letter, so
    `Orders` becomes `Orders=-1`. A leading underscore or dot, a dot at the end and the first letter of a
    device name are encoded, too. A result longer than `PATH_PART_MAX` is cut and ends with =~ and a hash of
    the name. An encoded name contains =- or =~ in no other case.
    """
    text = quote(name, safe="").replace("%", "=") or "="
    if text[0] in "_." or _DEVICE.match(text):
        text = f"={ord(text[0]):02X}{text[1:]}"
    if text.endswith("."):
        text = f"{text[:-1]}=2E"
    # docs/guarantees.md#no-two-tables-and-no-two-changefeeds-share-a-folder: on a disk that ignores case, `a`
    # and `A` would be one folder.
    capitals = sum(1 << at for at, sign in enumerate(name) if "A" <= sign <= "Z")
    return shortened(f"{text}=-{capitals:x}" if capitals else text, name, PATH_PART_MAX)


def shortened(text: str, name: str, limit: int) -> str:
    """`text` if it has at most `limit` characters, otherwise its beginning and a hash of `name`."""
    if len(text) <= limit:
        return text
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"{text[: limit - 34]}=~{digest}"
