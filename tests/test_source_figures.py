"""The figures of the source count what they say."""

from pathlib import Path

from tools.source_figures import of

KERNELS = '''"""Kernels of two
lines."""

@kernel
def added(left, right):
    """Their sum."""
    # It cannot overflow.
    return left + 7 * right + 1


class Small:
    """A class."""

    size: Any = 3
'''


def test_comments_docstrings_kernels_and_numbers_are_counted(tmp_path: Path) -> None:
    (tmp_path / "proto").mkdir()
    (tmp_path / "proto" / "made.py").write_text("# generated\n")
    (tmp_path / "puller").mkdir()
    (tmp_path / "puller" / "some_kernels.py").write_text(KERNELS)
    figures = of(tmp_path)
    assert figures.files == [14]
    assert (figures.comments, figures.docstrings, figures.any_names) == (1, 4, 1)
    assert figures.rooms == {"puller": (1, 14), "kernels": (1, 14)}
    assert next(text for name, text in figures.rows() if name == "lines of comment in puller") == "7.14 %"
    assert (figures.functions, figures.classes) == ([3], [4])
    assert (figures.kernel_arguments, figures.kernel_numbers) == ([2], 1)
