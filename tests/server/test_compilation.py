"""A capture whose kernels are not compiled has them compiled first."""

import asyncio
from pathlib import Path

import pytest

from tidegate import kernel
from tidegate.errors import Fatal
from tidegate.server.supervision import compilation


def test_kernels_that_are_compiled_are_not_compiled_again() -> None:
    assert kernel.is_compiled(), "make setup"
    asyncio.run(compilation.compile_kernels())  # loads them in another process


def test_kernels_that_cannot_be_compiled_end_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "COMMAND", "python -m tidegate.no_such_module")
    with pytest.raises(Fatal, match="cannot be compiled") as raised:
        asyncio.run(compilation.compile_kernels())
    assert "no_such_module" in raised.value.why


def test_the_end_of_a_capture_ends_its_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "forever.py").write_text(
        "import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(600)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compilation, "COMMAND", "python -m forever")

    async def end() -> None:
        work = asyncio.create_task(compilation.compile_kernels())
        async with asyncio.timeout(60):
            while not (tmp_path / "begun").exists():
                await asyncio.sleep(0.02)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(end())
