"""CRC-32 (IEEE, as in zlib) for kernels: checksums of rows, hashes of dispatchers.

A *register* is the CRC before its final inversion: start from `FULL`, end with `^ FULL`. `crc_bytes` is
portable (slice-by-8). `crc_row` uses carry-less multiplication if the CPU has it: 16 bytes per step, 9-13
GB/s instead of 1.2. Folding needs a message of whole 16-byte blocks. Instead of a shorter last block, we
prepend zeros: they change nothing except the place where the register is combined with the data. Source of
the method and constants: Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ" (Intel,
2009).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.core.base import BaseContext as Compiler
from numba.core.typing import Signature
from numba.core.typing.context import BaseContext as Typing
from numba.extending import intrinsic

from tidegate.kernel import Intrinsic, Values, inline, load_u8, load_u64
from tidegate.tidb.kernels.text import I64, U64

FULL: Final = 0xFFFFFFFF
"""The register before the first byte; the register after the last byte is inverted with it."""


def _tables() -> npt.NDArray[np.uint32]:
    """Slice-by-8 tables of the reflected polynomial 0xEDB88320, in sequence."""
    first = np.zeros(256, dtype=np.uint32)
    for i in range(256):
        word = i
        for _ in range(8):
            word = (word >> 1) ^ (0xEDB88320 if word & 1 else 0)
        first[i] = word
    tables = [first]
    for _ in range(7):
        tables.append(first[tables[-1] & 0xFF] ^ (tables[-1] >> np.uint32(8)))
    return np.concatenate(tables)


_CRC: Final = _tables()


@inline
def crc_word(register: int, word: Any) -> int:
    """The register after 8 more bytes, a little-endian U64."""
    low = (I64(word) & 0xFFFFFFFF) ^ register
    high = I64(word >> U64(32))
    return (
        I64(_CRC[1792 + (low & 0xFF)])
        ^ I64(_CRC[1536 + ((low >> 8) & 0xFF)])
        ^ I64(_CRC[1280 + ((low >> 16) & 0xFF)])
        ^ I64(_CRC[1024 + (low >> 24)])
        ^ I64(_CRC[768 + (high & 0xFF)])
        ^ I64(_CRC[512 + ((high >> 8) & 0xFF)])
        ^ I64(_CRC[256 + ((high >> 16) & 0xFF)])
        ^ I64(_CRC[high >> 24])
    )


@inline
def crc_u32(register: int, word: int) -> int:
    """The register after 4 more bytes, a little-endian number."""
    low = (word & 0xFFFFFFFF) ^ register
    return (
        I64(_CRC[768 + (low & 0xFF)])
        ^ I64(_CRC[512 + ((low >> 8) & 0xFF)])
        ^ I64(_CRC[256 + ((low >> 16) & 0xFF)])
        ^ I64(_CRC[low >> 24])
    )


@inline
def crc_bytes(register: int, addr: int, size: int) -> int:
    """The register after `size` more bytes; reads nothing else."""
    end = addr + size
    while addr + 8 <= end:
        register = crc_word(register, load_u64(addr))
        addr += 8
    while addr < end:
        register = (register >> 8) ^ I64(_CRC[(register ^ I64(load_u8(addr))) & 0xFF])
        addr += 1
    return register


# --- carry-less multiplication --------------------------------------------------------------------------

CLMUL: Final = all(binding.get_host_cpu_features().get(name, False) for name in ("pclmul", "ssse3"))
"""Whether this machine's CPU has carry-less multiplication (x86-64 from 2010 on)."""

_BY_16: Final = (0x01751997D0, 0x00CCAA009E)
"""x**160 and x**96 modulo P, reflected: they move the halves of a block by 16 bytes."""
_BY_32: Final = (0x00F1DA05AA, 0x015A546366)
"""x**288 and x**224: they move by 32 bytes."""
_TO_32: Final = (0x0163CD6124, 0)
_BARRETT: Final = (0x01DB710641, 0x01F7011641)
"""P and its inverse."""

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_BLOCK, _BYTES = ir.VectorType(_I64, 2), ir.VectorType(_I8, 16)
_PAIR: Final = types.UniTuple(types.uint64, 2)


def _word(value: int) -> ir.Constant:
    return ir.Constant(_I64, value)


def _constant(low: int, high: int) -> ir.Constant:
    return ir.Constant(_BLOCK, [_word(low), _word(high)])


def _load_block(builder: ir.IRBuilder, addr: ir.Value) -> ir.Value:
    block = builder.load(builder.inttoptr(addr, _BLOCK.as_pointer()))
    block.align = 1
    return block


def _block(builder: ir.IRBuilder, low: ir.Value, high: ir.Value) -> ir.Value:
    half = builder.insert_element(ir.Constant(_BLOCK, ir.Undefined), low, ir.Constant(_I32, 0))
    return builder.insert_element(half, high, ir.Constant(_I32, 1))


def _half(builder: ir.IRBuilder, block: ir.Value, at: int) -> ir.Value:
    return builder.extract_element(block, ir.Constant(_I32, at))


def _returned(context: Compiler, builder: ir.IRBuilder, block: ir.Value) -> ir.Value:
    return context.make_tuple(builder, _PAIR, (_half(builder, block, 0), _half(builder, block, 1)))


def _clmul(builder: ir.IRBuilder, block: ir.Value, constant: tuple[int, int], halves: int) -> ir.Value:
    """The product of one half of each; `halves`: bit 0 selects the block's half, bit 4 the constant's."""
    kind = ir.FunctionType(_BLOCK, [_BLOCK, _BLOCK, _I8])
    multiply = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.pclmulqdq")
    return builder.call(multiply, [block, _constant(*constant), ir.Constant(_I8, halves)])


def _shifted(builder: ir.IRBuilder, block: ir.Value, head: ir.Value) -> ir.Value:
    """The first `head` (below 16) bytes of a block moved to its end, with zeros before them."""
    bytes_of = ir.ArrayType(_I8, 32)
    # PSHUFB writes a zero for an index with its high bit. A mask that begins at `head` has 16 - `head` of
    # these, and then the first `head` bytes of the block.
    order = ir.Constant(bytes_of, [ir.Constant(_I8, at) for at in (*[0x80] * 16, *range(16))])
    table = cgutils.global_constant(builder.module, "tidegate_shift", order)
    mask = builder.load(builder.bitcast(builder.gep(table, [_word(0), head]), _BYTES.as_pointer()))
    mask.align = 1
    kind = ir.FunctionType(_BYTES, [_BYTES, _BYTES])
    shuffle = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.ssse3.pshuf.b.128")
    return builder.bitcast(builder.call(shuffle, [builder.bitcast(block, _BYTES), mask]), _BLOCK)


def _stepped(builder: ir.IRBuilder, state: ir.Value, data: ir.Value, by: tuple[int, int]) -> ir.Value:
    """The state moved by the distance of the constants and combined with the block at that place."""
    low, high = _clmul(builder, state, by, 0x00), _clmul(builder, state, by, 0x11)
    return builder.xor(builder.xor(low, high), data)


def _fold(typingctx: Typing, register: types.Type, addr: types.Type, size: types.Type) -> Intrinsic:
    def codegen(context: Compiler, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        register, addr, size = args
        # Zeros before the first bytes do not change the remainder. So the odd bytes come first, as a block
        # with zeros before them, and only whole blocks follow.
        head = builder.and_(size, _word(15))
        first = builder.xor(_load_block(builder, addr), _block(builder, register, _word(0)))
        state = _shifted(builder, first, head)
        # If the first block has fewer than 4 bytes, the rest of the register is combined with the second one.
        met = builder.select(builder.icmp_unsigned("<", head, _word(4)), head, _word(4))
        rest = builder.lshr(register, builder.shl(met, _word(3)))
        # Two lanes, because each step has to wait for the previous one. They process an even number of
        # blocks. If the number is odd, the first two are folded into one. This is done without a branch,
        # which would be mispredicted half of the time.
        start, end = builder.add(addr, head), builder.add(addr, size)
        second = builder.xor(_load_block(builder, start), _block(builder, rest, _word(0)))
        odd = builder.icmp_unsigned("==", builder.and_(builder.sub(end, start), _word(16)), _word(0))
        first_lane = builder.select(odd, _stepped(builder, state, second, _BY_16), state)
        begin = builder.select(odd, builder.add(start, _word(16)), start)
        second_lane = builder.select(odd, _load_block(builder, begin), second)
        begin = builder.add(begin, _word(16))
        before = builder.block
        loop, done = builder.append_basic_block("fold"), builder.append_basic_block("folded")
        builder.cbranch(builder.icmp_unsigned("<", begin, end), loop, done)
        builder.position_at_end(loop)
        at, left, right = builder.phi(_I64), builder.phi(_BLOCK), builder.phi(_BLOCK)
        following = builder.add(at, _word(16))
        moved_left = _stepped(builder, left, _load_block(builder, at), _BY_32)
        moved_right = _stepped(builder, right, _load_block(builder, following), _BY_32)
        following = builder.add(at, _word(32))
        for phi, entering, again in (
            (at, begin, following),
            (left, first_lane, moved_left),
            (right, second_lane, moved_right),
        ):
            phi.add_incoming(entering, before)
            phi.add_incoming(again, loop)
        builder.cbranch(builder.icmp_unsigned("<", following, end), loop, done)
        builder.position_at_end(done)
        left, right = builder.phi(_BLOCK), builder.phi(_BLOCK)
        for phi, entering, again in ((left, first_lane, moved_left), (right, second_lane, moved_right)):
            phi.add_incoming(entering, before)
            phi.add_incoming(again, loop)
        folded = _stepped(builder, left, right, _BY_16)
        return _returned(context, builder, folded)

    return _PAIR(types.int64, types.int64, types.int64), codegen


def _append(typingctx: Typing, low: types.Type, high: types.Type, word: types.Type) -> Intrinsic:
    def codegen(context: Compiler, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        low, high, word = args
        moved = _clmul(builder, _block(builder, low, _word(0)), _BY_16, 0x10)
        return _returned(context, builder, builder.xor(moved, _block(builder, high, word)))

    return _PAIR(types.uint64, types.uint64, types.uint64), codegen


def _reduce(typingctx: Typing, low: types.Type, high: types.Type) -> Intrinsic:
    def codegen(context: Compiler, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        low, high = args
        lows = _constant(FULL, FULL)
        moved = _clmul(builder, _block(builder, low, _word(0)), _BY_16, 0x10)
        block = builder.xor(moved, _block(builder, high, _word(0)))
        first, second = _half(builder, block, 0), _half(builder, block, 1)
        joined = builder.or_(builder.lshr(first, _word(32)), builder.shl(second, _word(32)))
        upper = _block(builder, joined, builder.lshr(second, _word(32)))
        block = builder.xor(_clmul(builder, builder.and_(block, lows), _TO_32, 0x00), upper)
        quotient = _clmul(builder, builder.and_(block, lows), _BARRETT, 0x10)
        product = _clmul(builder, builder.and_(quotient, lows), _BARRETT, 0x00)
        rest = _half(builder, builder.xor(block, product), 0)
        return builder.lshr(rest, _word(32))

    return types.uint64(types.uint64, types.uint64), codegen


fold = cast("Callable[[int, int, int], tuple[int, int]]", intrinsic(_fold))
"""(register, addr, size >= 16) -> two words congruent to the bytes; reads nothing else."""
append_word = cast("Callable[[int, int, Any], tuple[int, int]]", intrinsic(_append))
"""The two words after 8 more bytes, a little-endian U64."""
reduced = cast("Callable[[int, int], int]", intrinsic(_reduce))
"""The register (U64) of two folded words."""


@inline
def crc_row_portable(value: int, size: int, tail: int, tail_size: int) -> int:
    """The CRC-32 of `size` bytes at `value` and `tail_size` at `tail`."""
    return crc_bytes(crc_bytes(FULL, value, size), tail, tail_size) ^ FULL


@inline
def crc_row_folded(value: int, size: int, tail: int, tail_size: int) -> int:
    """The same CRC-32, computed by folding; for CPUs that have `CLMUL`."""
    # `fold` loads a whole block at the start.
    if size < 16:
        return crc_bytes(crc_bytes(FULL, value, size), tail, tail_size) ^ FULL
    low, high = fold(FULL, value, size)
    # The usual tail, an integer handle, joins the fold and needs no loop over bytes.
    if tail_size == 8:
        low, high = append_word(low, high, load_u64(tail))
        return I64(reduced(low, high)) ^ FULL
    return crc_bytes(I64(reduced(low, high)), tail, tail_size) ^ FULL


crc_row: Callable[[int, int, int, int], int] = crc_row_folded if CLMUL else crc_row_portable
"""(value, size, tail, tail_size) -> the CRC-32 of both, by the faster method on this machine."""
