"""How numba compiles kernels and their helpers here: a helper is only linked, and optimised in its kernels.

numba by itself makes each function ready to be called: it optimises it together with all that it calls,
also in two wrappers for Python and C, and makes machine code of the three. A helper that is always inlined
needs none of that, and a large one, which has many others inside, would be optimised once at each level above
it. So a helper here is typed, translated to LLVM's form, simplified alone, and kept. A kernel links every
helper that it needs, directly or not, and all are optimised there, once.

Only a kernel or a helper may call a helper. A function that numba compiles in its own way (`njit`) would link
the helper without those that it calls, and the process would end with a segmentation fault at the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from numba import njit
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.registry import CPUDispatcher


class HelperLibrary(JITCodeLibrary):
    """The code of one helper without that of what it calls: for a kernel's library, never to be called."""

    def finalize(self) -> None:
        """Nothing more is added. There is nothing to optimise and no machine code to make."""
        self._raise_if_finalized()
        self._finalized = True


class KernelLibrary(JITCodeLibrary):
    """The code of one kernel, with that of all helpers that it calls and that they call."""

    _linking_libraries: list[JITCodeLibrary]

    def finalize(self) -> None:
        """Link, optimise and make machine code."""
        self._linking_libraries = _with_called(self._linking_libraries)
        super().finalize()


def _with_called(libraries: Iterable[JITCodeLibrary]) -> list[JITCodeLibrary]:
    """Libraries and those that helpers among them call, each once and after all that call it.

    LLVM links a function of a library only if what is linked already calls it.
    """
    seen = set()
    called_first = []

    def visit(library: JITCodeLibrary) -> None:
        if library not in seen:
            seen.add(library)
            if isinstance(library, HelperLibrary):
                for called in library._linking_libraries:
                    visit(called)
            called_first.append(library)

    for library in libraries:
        visit(library)
    return called_first[::-1]


class KernelCompiler(Compiler):
    """Compiles a kernel to a library of its kind."""

    library_class: type[JITCodeLibrary] = KernelLibrary

    def define_pipelines(self) -> Any:
        """Numba's steps, which put the code into the library that is here before them."""
        state = self.state
        state.library = self.library_class(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return super().define_pipelines()


class HelperCompiler(KernelCompiler):
    """Compiles a helper to a library of its kind, without a function that Python could call."""

    library_class = HelperLibrary

    def define_pipelines(self) -> Any:
        """Numba's steps without the last, which would ask for the address of the machine code."""
        self.state.flags.no_compile = True
        return super().define_pipelines()


class Helper(CPUDispatcher):
    """A helper: compiled for the types with which kernels and other helpers call it.

    A call from Python, for example in a test, compiles a kernel that only calls it.
    """

    def __init__(
        self, function: Callable[..., Any], variables: Any = None, options: dict[str, bool] | None = None
    ) -> None:
        """`variables` and `options`: as numba has them, by which it also copies the helper."""
        own = {"nopython": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        super().__init__(function, variables, own | (options or {}), HelperCompiler)

    def add_overload(self, cres: Any) -> None:
        """Let callers find the code for these types; numba does so by what Python would call, of which there
        is none.
        """
        cres = cres._replace(entry_point=object())
        self.targetctx.insert_user_function(cres.entry_point, cres.fndesc, [cres.library])
        self.overloads[tuple(cres.signature.args)] = cres

    @cached_property
    def _kernel(self) -> Any:
        return njit(pipeline_class=KernelCompiler, forceinline=False)(self.py_func)

    def __call__(self, *args: Any) -> Any:
        """Call it from Python."""
        return self._kernel(*args)


def entry(function: Callable[..., Any]) -> Any:
    """A kernel that Python calls: cached on disk, without the GIL and without checks of bounds."""
    # Without `forceinline`, numba would take it from the helper whose call is why this kernel is compiled.
    options = {"cache": True, "nogil": True, "no_cfunc_wrapper": True, "forceinline": False}
    return njit(pipeline_class=KernelCompiler, **options)(function)
