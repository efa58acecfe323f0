"""Operations on columns of texts, as Arrow binaries: comparison by collation, patterns, functions.

ASCII texts use Arrow's functions. Other texts, under a collation with weights of its own, are computed once
for each distinct value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.filter.expression import plain
from tidegate.filter.expression.patterns import ANY, ONE
from tidegate.filter.expression.typed import Domain, Typed
from tidegate.tidb.types import collation

Bools = npt.NDArray[np.bool_]

_COMPARE: Final = {
    "=": pc.equal,
    "<=>": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def spread(array: pa.Array, n: int) -> pa.Array:
    """An array of n rows. An array of one row is repeated."""
    return array if len(array) == n else pa.repeat(array[0], n)


def _as_text(array: pa.Array) -> pa.Array:
    """The same bytes as Arrow strings, without a check of UTF-8: for functions that only look at bytes."""
    return pa.Array.from_buffers(pa.string(), len(array), array.buffers(), array.null_count, array.offset)


def is_ascii(array: pa.Array) -> bool:
    """Whether every text is ASCII."""
    data = array.buffers()[2]
    if data is None:
        return True
    ends = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    used = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]] if len(ends) else np.empty(0, np.uint8)
    return not bool((used & 0x80).any())


def distinct(array: pa.Array, work: Callable[[bytes], Any], dtype: Any) -> npt.NDArray[Any]:
    """The result of `work` for every text, computed once for each distinct text."""
    coded = array.dictionary_encode()
    made = np.array([work(text) for text in coded.dictionary.to_pylist()], dtype)
    indices = coded.indices.to_numpy(zero_copy_only=False)
    found: npt.NDArray[Any] = made[indices]
    return found


def _distinct_texts(array: pa.Array, work: Callable[[bytes], bytes]) -> pa.Array:
    coded = array.dictionary_encode()
    made = pa.array([work(text) for text in coded.dictionary.to_pylist()], pa.binary())
    return made.take(coded.indices)


def written(of: Typed, data: npt.NDArray[Any], null: Bools) -> pa.Array:
    """Numbers, dates and times as texts. Arrow converts integers; others are converted once for each distinct
    value.
    """
    data = np.where(null, np.zeros(1, data.dtype), data)
    if of.domain is Domain.INT and not (of.is_year or of.bits or data.dtype == np.object_):
        return pa.array(data).cast(pa.string()).view(pa.binary())
    if of.domain is Domain.REAL:
        different, at = np.unique(data.view(np.int64), return_inverse=True)  # -0 is not 0
        different = different.view(np.float64)
    else:
        different, at = np.unique(data, return_inverse=True)
    values = different.tolist()
    if of.domain is Domain.DECIMAL:
        values = [plain.decimal_of(units, of.scale) for units in values]
    made = pa.array([plain.written(of, value) for value in values], pa.binary())
    return made.take(pa.array(at))


# --- comparison -----------------------------------------------------------------------------------------


def keys(array: pa.Array, collate: str) -> pa.Array:
    """The collation's keys (`collation.key`)."""
    plain_bytes = collate in ("binary", "utf8mb4_0900_bin", "")
    if plain_bytes:
        return array
    weighted = collation.ignores_case(collate)
    if weighted and collation.is_ordered(collate):
        # Keys have two bytes for each character. For ASCII, upper case letters have the same order.
        weighted = not is_ascii(array)
    elif weighted:
        weighted = not is_ascii(array) or _has_control(array)
    elif collate in ("gbk_bin", "gb18030_bin"):
        weighted = not is_ascii(array)
    if weighted:
        raise ValueError("keys that do not compare with those of ASCII")
    found = _as_text(array)
    if collation.pads(collate):
        found = pc.ascii_rtrim(found, characters=" ")
    if collation.ignores_case(collate):
        found = pc.ascii_upper(found)
    return found.view(pa.binary())


def _has_control(array: pa.Array) -> bool:
    """Whether a text has characters below the space, which have no weight in some collations."""
    data = array.buffers()[2]
    # Bytes outside a slice are searched as well; that can only choose the slower way.
    return data is not None and bool((np.frombuffer(data, np.uint8) < 0x20).any())


def _weighed(arrays: Sequence[pa.Array], collate: str) -> list[pa.Array]:
    """Keys of arrays that are compared with each other. All keys are of the same kind."""
    try:
        return [keys(array, collate) for array in arrays]
    except ValueError:
        return [_distinct_texts(array, lambda text: collation.key(text, collate)) for array in arrays]


def compare(op: str, left: pa.Array, right: pa.Array, collate: str) -> Bools:
    """A comparison of two columns, or of a column and a constant of one row."""
    one, other = _weighed([left, right], collate)
    n = max(len(one), len(other))
    if len(other) == 1 and n > 1:
        return _bools(_COMPARE[op](one, other[0]))
    return _bools(_COMPARE[op](spread(one, n), other))


def _bools(array: pa.Array) -> Bools:
    found: Bools = array.to_numpy(zero_copy_only=False)
    return found.astype(np.bool_)


def is_in(array: pa.Array, wanted: Sequence[bytes], collate: str) -> Bools:
    """Which texts are equal to one of the constants."""
    held, constants = _weighed([array, pa.array(wanted, pa.binary())], collate)
    return _bools(pc.is_in(held, value_set=constants))


# --- patterns -------------------------------------------------------------------------------------------


def like(node: Typed, array: pa.Array) -> Bools:
    """LIKE: by RE2 if characters are ASCII or equal only themselves, otherwise once for each distinct text.

    If characters equal only themselves, a pattern of one literal, with or without % at its ends, is searched
    as bytes.
    """
    literal = _literal(node)
    if literal is not None and (node.collate == "binary" or is_ascii(array) or _is_utf8(array)):
        return _bools(literal(array))
    by_sign = collation.ignores_case(node.collate) or node.collate == "binary"
    if is_ascii(array) and not (_has_control(array) and by_sign):
        written = _ascii_pattern(node)
        if written is not None:
            return regexp(written, array)
    elif not by_sign and _is_utf8(array):
        return regexp(_regex(node.value, lambda part: part.decode()), array)
    return distinct(array, lambda text: plain.like(node, text), np.bool_)


def _literal(node: Typed) -> Callable[[pa.Array], pa.Array] | None:
    """A search for a pattern of one literal. None for other patterns, and if characters have weights."""
    parts = list(node.value)
    starts, ends = parts[:1] != [ANY], parts[-1:] != [ANY]
    inner = parts[not starts : len(parts) - (not ends)]
    if collation.ignores_case(node.collate) or not all(isinstance(part, bytes) for part in inner):
        return None
    text = b"".join(inner)
    if starts and ends:
        return lambda array: pc.equal(array, pa.scalar(text, pa.binary()))
    find = pc.starts_with if starts else pc.ends_with if ends else pc.match_substring
    return lambda array: find(array, text)


def _ascii_pattern(node: Typed) -> str | None:
    """The RE2 expression for ASCII texts. None if a literal has no ASCII form."""
    # Downwards, so that of characters with one weight the lowest code stays.
    signs = {_weight(node.collate, chr(code)): chr(code) for code in range(127, 31, -1)}
    if any(isinstance(part, bytes) and part not in signs for part in node.value):
        return None
    fold = "(?i)" if collation.ignores_case(node.collate) else ""
    return fold + _regex(node.value, lambda part: signs[part])


def _weight(collate: str, sign: str) -> bytes:
    return sign.encode() if collate == "binary" else collation.sign_key(collate)(sign)


def _regex(parts: Sequence[bytes | bool | None], text_of: Callable[[bytes], str]) -> str:
    out = "(?s)\\A"
    for part in parts:
        if part is ANY:
            out += ".*"
        elif part is ONE:
            out += "."
        else:
            assert isinstance(part, bytes), "a literal"
            out += re.sub(r"([^\w\u0080-\U0010ffff])", r"\\\1", text_of(part))
    return out + "\\z"


def _is_utf8(array: pa.Array) -> bool:
    try:
        _as_text(array).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def regexp(regex: str, array: pa.Array) -> Bools:
    """REGEXP by RE2. In text that is not UTF-8, bad bytes are replaced first."""
    if not is_ascii(array) and not _is_utf8(array):
        repaired = _distinct_texts(array, lambda text: text.decode(errors="replace").encode())
        return regexp(regex, repaired)
    return _bools(pc.match_substring_regex(_as_text(array), regex))


# --- functions ------------------------------------------------------------------------------------------


def lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    """The number of bytes of each text."""
    found: npt.NDArray[np.int64] = pc.binary_length(array).to_numpy(zero_copy_only=False)
    return found.astype(np.int64)


def signs(array: pa.Array) -> npt.NDArray[np.int64]:
    """The number of characters of each text."""
    if is_ascii(array):
        return lengths(array)
    return distinct(array, lambda text: len(text.decode(errors="replace")), np.int64)


def cased(array: pa.Array, *, upper: bool) -> pa.Array:
    """Each text in upper or lower case."""
    if is_ascii(array):
        change = pc.ascii_upper if upper else pc.ascii_lower
        return change(_as_text(array)).view(pa.binary())
    return _distinct_texts(array, plain.upper if upper else plain.lower)


def concat(arrays: Sequence[pa.Array]) -> pa.Array:
    """The texts of each row, joined."""
    n = max(len(array) for array in arrays)
    spread_out = [spread(array, n) for array in arrays]
    return pc.binary_join_element_wise(*spread_out, pa.scalar(b"", pa.binary()))
