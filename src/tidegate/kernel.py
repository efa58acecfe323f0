"""Compiled kernels: the one typed decorator, and the raw-memory intrinsics that kernels share.

Kernels work on addresses (int64) of buffers instead of array indexes. Loads and stores are unaligned,
little-endian, and unchecked, so a kernel must prove its bounds before it touches memory. Buffers that
kernels write have `PAD` spare bytes at the end, so that a 32-byte copy may safely overrun. There is no switch
to run kernels as plain Python: each kernel has a plain twin elsewhere that defines the correct result.

Measured reasons for this form (numba 0.68): `@inline` helpers with forceinline compile in a tenth of the time
of `inline='always'` and run twice as fast; plain `@njit` helpers are three times slower.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from llvmlite import binding as llvm
from llvmlite import ir
from numba import types
from numba.core.base import BaseContext as Compiler
from numba.core.typing import Signature
from numba.core.typing.context import BaseContext as Typing
from numba.extending import intrinsic

from tidegate.cores import usable
from tidegate.kernel_linking import Helper, entry
from tidegate.launcher import bound
from tidegate.program import starting

P = ParamSpec("P")
R = TypeVar("R")

Values: TypeAlias = Sequence[ir.Value]
"""The arguments of an intrinsic's call."""
Codegen: TypeAlias = Callable[[Compiler, ir.IRBuilder, Signature, Values], ir.Value]
"""Writes the instructions of an intrinsic: given the compiler, the place, its types and its arguments."""
Intrinsic: TypeAlias = tuple[Signature, Codegen]
"""How numba asks for an intrinsic: the types for which it is, and its instructions."""

_int64: Any = np.int64

PAD: Final = 64
COMPLETE: Final = "complete"
"""The file in the folder of compiled kernels that exists once all are compiled."""
MOST_COMPILERS: Final = 4
"""Processes that compile at the same time. More would wait for the longest module."""


def _kernel_sources() -> list[Path]:
    """The files with kernels or helpers of kernels: named `*kernels.py`, or in a folder `kernels`."""
    package = Path(__file__).parent
    return sorted({*package.rglob("*kernels.py"), *package.rglob("kernels/*.py")})


def _cache_folder() -> Path:
    """The folder of compiled kernels: one for each state of the kernels' source.

    numba notices a change only in the file of the kernel itself, not in a helper that it inlines from another
    file. Without a folder for each state, an edited helper would not be compiled in, without any sign of it.
    The folder is next to the source, or in the user's cache if that is not writable.
    """
    package = Path(__file__).parent
    digest = hashlib.sha256(f"{numba.__version__} {np.__version__}".encode())
    for source in [*sorted(package.glob("kernel*.py")), *_kernel_sources()]:
        digest.update(source.read_bytes())
    name = f"kernels-{digest.hexdigest()[:16]}"
    folder = package / "__pycache__"
    if os.access(folder if folder.exists() else package, os.W_OK):
        return folder / name
    return Path.home() / ".cache" / "tidegate" / name


numba.config.CACHE_DIR = str(_cache_folder())


def _state() -> str:
    """Everything but the text of the sources that numba's cache depends on; a change compiles again.

    The path is part of it: in a checkout that was copied or moved with its compiled kernels, numba finds none
    of them, and without it each process would compile them again.
    """
    sources = [(one.stat().st_mtime_ns, one.stat().st_size) for one in _kernel_sources()]
    return f"{sys.version} {llvm.get_host_cpu_name()} {Path(__file__).parent} {sources}"


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile an entry kernel: cached on disk, releases the GIL, no bounds checks."""
    return cast("Callable[P, R]", entry(function))


def inline(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a helper that is always inlined into the kernel that calls it."""
    return cast("Callable[P, R]", Helper(function, options={"forceinline": True}))


def shared(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a helper that is one function in a kernel, for all calls, unless LLVM inlines it."""
    return cast("Callable[P, R]", Helper(function, options={"forceinline": False}))


def buffer(size: int) -> npt.NDArray[np.uint8]:
    """An uninitialised byte buffer of `size` with `PAD` spare bytes after it."""
    return np.empty(size + PAD, dtype=np.uint8)


def address(array: npt.NDArray[Any] | pa.Buffer | None) -> int:
    """The address of an array's or Arrow buffer's first byte; 0 for None."""
    if array is None:
        return 0
    if isinstance(array, pa.Buffer):
        return int(array.address)
    try:
        # Takes a fifth of the time of `array.ctypes`; small batches ask for dozens of addresses.
        return int(pa.py_buffer(array).address)
    except ValueError:  # it is not contiguous
        return int(array.ctypes.data)


def _load(bits: int, signed: bool = False) -> Callable[[int], int]:
    result = {8: types.uint8, 16: types.uint16, 32: types.uint32, 64: types.uint64}[bits]
    if signed:
        result = {8: types.int8, 16: types.int16, 32: types.int32, 64: types.int64}[bits]

    def load(typingctx: Typing, addr: types.Type) -> Intrinsic:
        def codegen(context: Compiler, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
            word = ir.IntType(bits)
            value = builder.load(builder.inttoptr(args[0], word.as_pointer()))
            # Without this LLVM may assume that the address is a multiple of the word's size.
            value.align = 1
            return value

        return result(types.int64), codegen

    return cast("Callable[[int], int]", intrinsic(load))


def _store(bits: int) -> Any:
    word_type = {8: types.uint8, 16: types.uint16, 32: types.uint32, 64: types.uint64}[bits]

    def store(typingctx: Typing, addr: types.Type, value: types.Type) -> Intrinsic:
        def codegen(context: Compiler, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
            word = ir.IntType(bits)
            done = builder.store(args[1], builder.inttoptr(args[0], word.as_pointer()))
            done.align = 1
            return context.get_dummy_value()

        return types.void(types.int64, word_type), codegen

    return intrinsic(store)


load_u8, load_u16, load_u32, load_u64 = _load(8), _load(16), _load(32), _load(64)
load_i8, load_i16, load_i32, load_i64 = (
    _load(8, signed=True),
    _load(16, signed=True),
    _load(32, signed=True),
    _load(64, signed=True),
)
store_u8, store_u16, store_u32, store_u64 = _store(8), _store(16), _store(32), _store(64)


def _unary(name: str) -> Callable[[Any], int]:
    def operation(typingctx: Typing, value: types.Type) -> Intrinsic:
        def codegen(context: Compiler, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
            if name in ("bswap", "ctpop"):
                return getattr(builder, name)(args[0])
            return getattr(builder, name)(args[0], ir.Constant(ir.IntType(1), 0))

        return types.uint64(types.uint64), codegen

    return cast("Callable[[Any], int]", intrinsic(operation))


bswap64, cttz64, ctlz64, ctpop64 = _unary("bswap"), _unary("cttz"), _unary("ctlz"), _unary("ctpop")


def _copy32(typingctx: Typing, target: types.Type, source: types.Type) -> Intrinsic:
    def codegen(context: Compiler, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        vector = ir.VectorType(ir.IntType(8), 32)
        value = builder.load(builder.inttoptr(args[1], vector.as_pointer()))
        value.align = 1
        done = builder.store(value, builder.inttoptr(args[0], vector.as_pointer()))
        done.align = 1
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


copy32 = cast("Callable[[int, int], None]", intrinsic(_copy32))
"""Copy 32 bytes, unaligned: the tail past the wanted length must be spare on both sides."""


def _marks32(compare: Callable[[ir.IRBuilder, ir.Value, Values], ir.Value], numbers: int) -> Any:
    """An intrinsic that loads 32 bytes and gives a bit for each: whether `compare` holds for it.

    `numbers`: how many numbers `compare` takes, each of which is repeated for all bytes.
    """
    vector = ir.VectorType(ir.IntType(8), 32)

    def codegen(context: Compiler, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        loaded = builder.load(builder.inttoptr(args[0], vector.as_pointer()))
        loaded.align = 1
        lanes = []
        for number in args[1:]:
            first = builder.insert_element(
                ir.Constant(vector, ir.Undefined),
                builder.trunc(number, ir.IntType(8)),
                ir.Constant(ir.IntType(32), 0),
            )
            zeros = ir.Constant(ir.VectorType(ir.IntType(32), 32), [0] * 32)
            lanes.append(builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), zeros))
        bits = builder.bitcast(compare(builder, loaded, lanes), ir.IntType(32))
        return builder.zext(bits, ir.IntType(64))

    if numbers == 1:
        return intrinsic(lambda typingctx, addr, one: (types.uint64(types.int64, types.int64), codegen))
    assert numbers == 2
    return intrinsic(
        lambda typingctx, addr, one, two: (types.uint64(types.int64, types.int64, types.int64), codegen)
    )


below32 = cast(
    "Callable[[int, int], int]",
    _marks32(lambda builder, loaded, lanes: builder.icmp_signed("<", loaded, lanes[0]), 1),
)
"""A bit for each of 32 bytes, that of the first byte lowest: whether it is below a number. Bytes are signed,
so those above 127 are below all others."""
equal32 = cast(
    "Callable[[int, int, int], int]",
    _marks32(
        lambda builder, loaded, lanes: builder.icmp_signed("==", builder.and_(loaded, lanes[0]), lanes[1]), 2
    ),
)
"""A bit for each of 32 bytes, as in `below32`: whether its bits under the first number equal the second."""

within32 = cast(
    "Callable[[int, int, int], int]",
    _marks32(
        lambda builder, loaded, lanes: builder.icmp_unsigned("<", builder.sub(loaded, lanes[0]), lanes[1]), 2
    ),
)
"""A bit for each of 32 bytes, as in `below32`: whether it is one of as many numbers as the second says, from
the first on. Bytes are unsigned here."""


def _prefetch(typingctx: Typing, addr: types.Type) -> Intrinsic:
    def codegen(context: Compiler, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        read, keep, data = (ir.Constant(word, value) for value in (0, 3, 1))
        builder.call(function, [builder.inttoptr(args[0], pointer), read, keep, data])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


prefetch = cast("Callable[[int], None]", intrinsic(_prefetch))
"""Ask the processor to load the cache line at an address; the address need not be valid."""


def _call(argument_count: int, bits: int) -> Any:
    """A call of a C function that takes words and returns nothing, or a signed number of `bits`."""
    result = types.int32 if bits else types.void

    def codegen(context: Compiler, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        word = ir.IntType(64)
        returned = ir.IntType(bits) if bits else ir.VoidType()
        pointer = ir.FunctionType(returned, [word] * argument_count).as_pointer()
        found = builder.call(builder.inttoptr(args[0], pointer), args[1:])
        return found if bits else context.get_dummy_value()

    if argument_count == 1:
        return intrinsic(lambda typingctx, function, one: (result(types.int64, types.int64), codegen))
    assert argument_count == 2
    return intrinsic(
        lambda typingctx, function, one, two: (result(types.int64, types.int64, types.int64), codegen)
    )


call_void = cast("Callable[[int, int], None]", _call(1, 0))
"""Call a C function by its address, with a pointer, for its effect."""
call_i32 = cast("Callable[[int, int, int], int]", _call(2, 32))
"""Call a C function by its address, with two pointers; returns its int."""


@inline
def copy_bytes(target: int, source: int, length: int) -> None:
    """Copy exactly `length` bytes forward; reads and writes nothing beyond them."""
    i = 0
    while i + 8 <= length:
        store_u64(target + i, load_u64(source + i))
        i += 8
    while i < length:
        store_u8(target + i, load_u8(source + i))
        i += 1


@inline
def copy_exact(target: int, source: int, length: int) -> None:
    """Copy `length` bytes in wide words, the last of which may overlap; touches nothing beyond them."""
    if length >= 32:
        i = 0
        while i + 32 <= length:
            copy32(target + i, source + i)
            i += 32
        # The last word overlaps what was copied: that saves a loop over bytes, and nothing outside is
        # touched.
        if i < length:
            copy32(target + length - 32, source + length - 32)
    elif length >= 8:
        i = 0
        while i + 8 <= length:
            store_u64(target + i, load_u64(source + i))
            i += 8
        store_u64(target + length - 8, load_u64(source + length - 8))
    elif length >= 4:
        head, tail = load_u32(source), load_u32(source + length - 4)
        store_u32(target, head)
        store_u32(target + length - 4, tail)
    elif length >= 2:
        first, last = load_u16(source), load_u16(source + length - 2)
        store_u16(target, first)
        store_u16(target + length - 2, last)
    elif length == 1:
        store_u8(target, load_u8(source))


@inline
def compare_bytes(left: int, left_length: int, right: int, right_length: int) -> int:
    """Negative, zero or positive as the bytes at `left` are below, equal to or above those at `right`."""
    shorter = min(left_length, right_length)
    i = 0
    while i + 8 <= shorter:
        x, y = load_u64(left + i), load_u64(right + i)
        if x != y:
            # Swapped, because the first byte in memory is the lowest of a loaded word.
            return -1 if bswap64(x) < bswap64(y) else 1
        i += 8
    while i < shorter:
        p, q = load_u8(left + i), load_u8(right + i)
        if p != q:
            return -1 if p < q else 1
        i += 1
    return left_length - right_length


@inline
def same_bytes(left: int, right: int, length: int) -> bool:
    """Whether `length` bytes are the same, by words that may overlap; reads nothing beyond them."""
    if length >= 8:
        i = 0
        while i + 8 < length:
            if load_u64(left + i) != load_u64(right + i):
                return False
            i += 8
        return load_u64(left + length - 8) == load_u64(right + length - 8)
    i = 0
    while i < length and load_u8(left + i) == load_u8(right + i):
        i += 1
    return i == length


@inline
def load_bounds(offsets: int, index: int) -> tuple[int, int]:
    """The begin and end of value `index` of an Arrow array, from its int32 offsets; both int64."""
    return _int64(load_i32(offsets + 4 * index)), _int64(load_i32(offsets + 4 * index + 4))


@inline
def load_be64(addr: int) -> int:
    """A big-endian u64."""
    return bswap64(load_u64(addr))


def is_compiled() -> bool:
    """Whether `warm` has compiled all kernels as they are now."""
    try:
        return (Path(numba.config.CACHE_DIR) / COMPLETE).read_text() == _state()
    except OSError:
        return False


def warm() -> None:
    """Import every module with kernels, and compile kernels that are not cached yet (`make setup`).

    Two callers do not compile at the same time: the second waits, and finds everything compiled.
    """
    folder = Path(numba.config.CACHE_DIR)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_compiled():
            _compile(KERNEL_MODULES, min(MOST_COMPILERS, usable()))
        # They are in the cache now, apart from those of a process that has died.
        for name in KERNEL_MODULES:
            import_module(name).warm()
        # Last, so that a process that is killed before leaves nothing that counts as complete.
        (folder / COMPLETE).write_text(_state())
    # Each state of the sources has a folder of its own, and nothing else removes them.
    for older in folder.parent.glob("kernels-*"):
        if older != folder:
            shutil.rmtree(older, ignore_errors=True)


def _compile(names: Sequence[str], processes: int) -> None:
    """Compile the kernels of modules in so many processes, of which this one is the first.

    A pipe has the modules' numbers, a byte each. A read takes the next one for whichever process it is, so
    that a process is idle only when no module is left. The others end with this one.
    """
    queue, numbers = os.pipe()
    os.write(numbers, bytes(range(len(names))))
    os.close(numbers)
    command = bound([sys.executable, "-m", "tidegate.kernel", str(queue), *names], signal.SIGKILL)
    others = [subprocess.Popen(command, pass_fds=[queue]) for _ in range(processes - 1)]
    try:
        _compile_from(queue, names)
        for other in others:
            other.wait()
    finally:
        for other in others:
            other.kill()
            other.wait()
        os.close(queue)


def _compile_from(queue: int, names: Sequence[str]) -> None:
    """Compile the modules whose numbers this process gets, until none is left."""
    while number := os.read(queue, 1):
        import_module(names[number[0]]).warm()


def load_compiled() -> None:
    """Load the compiled kernels of all imported modules, so that processes forked from this one have them.

    It takes half a second, which otherwise each process would spend on its first block. It does nothing
    unless `warm` has compiled all kernels, because compiling unused kernels here would take a minute.
    """
    if is_compiled():
        for name in KERNEL_MODULES:
            if name in sys.modules:
                sys.modules[name].warm()


KERNEL_MODULES: Final = (
    "tidegate.tidb.kernels.column",
    "tidegate.eventstore.kernels",
    "tidegate.codec.kernels.connect_kernels",
    "tidegate.tidb.kernels.row",
    "tidegate.codec.kernels.encode_kernels",
    "tidegate.codec.kernels.match_kernels",
    "tidegate.codec.kernels.avro_kernels",
    "tidegate.puller.match.match_kernels",
    "tidegate.puller.match.scan_kernels",
    "tidegate.tidb.kernels.arrow",
    "tidegate.puller.match.open_kernels",
    "tidegate.codec.kernels.decode_kernels",
    "tidegate.codec.kernels.simple_decode_kernels",
    "tidegate.codec.kernels.avro_decode_kernels",
    "tidegate.dispatcher.kernels",
    "tidegate.tidb.kernels.checksum",
    "tidegate.codec.kernels.avro_column_kernels",
    "tidegate.codec.kernels.kv_kernels",
    "tidegate.kvclient.page_kernels",
    "tidegate.eventstore.directory_kernels",
    "tidegate.puller.match.spill_kernels",
    "tidegate.puller.match.gather_kernels",
    "tidegate.puller.match.registration_kernels",
    "tidegate.puller.frontier_kernels",
    "tidegate.consumer.reading.message_kernels",
    "tidegate.consumer.mysql.row_kernels",
    "tidegate.verify.kernels",
)
"""Modules with a `warm()` that calls each kernel once with its real argument types.

First those whose kernels others call, so that two processes seldom compile the same; then the longest.
"""

if __name__ == "__main__":
    # The compiler makes objects by the million, most of which stay for as long as it runs.
    starting()
    if len(sys.argv) > 1:
        _compile_from(int(sys.argv[1]), sys.argv[2:])
    else:
        warm()
