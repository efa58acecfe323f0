"""Fixed-point numbers in MySQL's binary form.

Codec form: precision u8, frac u8, then the binary form. Digits left and right of the point are divided into
words of 9 digits (4 bytes); the partial words, first and last, have `_BYTES_OF[digits]` bytes. All are
big-endian. In a negative number every byte is inverted. Finally the very first bit is flipped, so that bytes
compare like the numbers. Source: TiDB `pkg/types/mydecimal.go`, `pkg/util/codec/decimal.go`.

Decoding is strict: a word must not exceed its digits (TiDB accepts a leading word that is ten times too
large).
"""

from __future__ import annotations

from typing import Final

from tidegate.errors import InvalidInput, Undecodable

MAX_PRECISION: Final = 81
"""The most digits that TiDB's nine words hold; columns have at most 65."""
MAX_SCALE: Final = 30

_BYTES_OF: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def binary_size(precision: int, frac: int) -> int:
    """Bytes of the binary form, without the two bytes of precision and frac."""
    whole = precision - frac
    return whole // 9 * 4 + _BYTES_OF[whole % 9] + frac // 9 * 4 + _BYTES_OF[frac % 9]


def decode(data: bytes) -> str:
    """The canonical text of a whole codec form: exactly `frac` digits after the point."""
    text, end = decode_prefix(data, 0)
    if end != len(data):
        raise Undecodable("a decimal has bytes after its end", why=f"{len(data) - end} bytes too many")
    return text


def size_at(data: bytes, start: int) -> int:
    """The length of the codec form that begins at `start`; checks its bounds but not its digits."""
    if start + 2 > len(data):
        raise Undecodable("a decimal is cut", why="no precision and scale")
    precision, frac = data[start], data[start + 1]
    if not 1 <= precision <= MAX_PRECISION or frac > precision:
        raise Undecodable(
            "a decimal has an impossible size",
            why=f"precision {precision}, scale {frac}",
        )
    size = 2 + binary_size(precision, frac)
    if start + size > len(data):
        raise Undecodable("a decimal is cut", why=f"{len(data) - start} bytes of {size}")
    return size


def decode_prefix(data: bytes, start: int) -> tuple[str, int]:
    """The text of the codec form at `start`, and its end."""
    end = start + size_at(data, start)
    return decode_binary(data[start + 2 : end], data[start], data[start + 1]), end


def decode_binary(data: bytes, precision: int, frac: int) -> str:
    """The text of the binary form of `binary_size(precision, frac)` bytes."""
    if not 1 <= precision <= MAX_PRECISION or not 0 <= frac <= precision:
        raise Undecodable(
            "a decimal has an impossible size",
            why=f"precision {precision}, scale {frac}",
        )
    if len(data) != binary_size(precision, frac):
        raise Undecodable("a decimal is cut", why=f"{len(data)} bytes for ({precision},{frac})")
    negative = not data[0] & 0x80
    plain = bytes([data[0] ^ 0x80]) + data[1:]
    if negative:
        plain = bytes(b ^ 0xFF for b in plain)
    whole = precision - frac
    widths = [whole % 9, *[9] * (whole // 9), *[9] * (frac // 9), frac % 9]
    digits, at = "", 0
    for width in widths:
        word = int.from_bytes(plain[at : at + _BYTES_OF[width]], "big")
        at += _BYTES_OF[width]
        if width and word >= 10**width:
            raise Undecodable("a decimal holds no number", why=f"a word of {width} digits is {word}")
        digits += f"{word:0{width}d}" if width else ""
    # Every width was written in full, so the digits of the whole part are exactly the first `whole`.
    return _join(negative, digits[:whole], digits[whole:])


def _join(negative: bool, whole: str, frac: str) -> str:
    text = whole.lstrip("0") or "0"
    if frac:
        text += "." + frac
    # A zero has no sign.
    return "-" + text if negative and text.strip("0.") else text


def encode(text: str, precision: int = 0, frac: int = 0) -> bytes:
    """The codec form of a number in canonical text, with the column's precision and scale.

    precision 0: the natural size of the text, which TiDB uses for values without a column. Digits after the
    scale are cut off; a whole part that does not fit is refused.
    """
    if precision == 0:
        precision, frac = natural_size(text)
    return bytes([precision, frac]) + encode_binary(text, precision, frac)


def natural_size(text: str) -> tuple[int, int]:
    """Precision and scale of a number in a text; leading zeros do not count.

    The scale is at most MAX_SCALE, as in TiDB; digits beyond it still count for the precision.
    """
    _, whole, frac = _split(text)
    whole = whole.lstrip("0")
    return max(len(whole) + len(frac), 1), min(len(frac), MAX_SCALE)


def encode_binary(text: str, precision: int, frac: int) -> bytes:
    """The binary form with that precision and scale."""
    if not 1 <= precision <= MAX_PRECISION or not 0 <= frac <= precision:
        raise InvalidInput(f"no decimal has precision {precision} and scale {frac}")
    negative, whole_digits, frac_digits = _split(text)
    whole = precision - frac
    whole_digits = whole_digits.lstrip("0").rjust(whole, "0")
    if len(whole_digits) > whole:
        raise InvalidInput(f"{text} does not fit decimal({precision},{frac})")
    digits = whole_digits + frac_digits[:frac].ljust(frac, "0")
    widths = [whole % 9, *[9] * (whole // 9), *[9] * (frac // 9), frac % 9]
    plain, at = b"", 0
    for width in widths:
        plain += int(digits[at : at + width] or "0").to_bytes(_BYTES_OF[width], "big")
        at += width
    # A number may become zero when its digits after the scale are cut off, and a zero has no sign.
    if negative and digits.strip("0"):
        plain = bytes(b ^ 0xFF for b in plain)
    return bytes([plain[0] ^ 0x80]) + plain[1:]


def _split(text: str) -> tuple[bool, str, str]:
    sign, digits = text[:1], text.lstrip("+-")
    whole, _, frac = digits.partition(".")
    if not (whole + frac).isascii() or not (whole + frac).isdigit() or len(text) - len(digits) > 1:
        raise InvalidInput(f"{text!r} is not a decimal number in canonical text")
    return sign == "-", whole, frac
