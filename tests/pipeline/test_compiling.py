"""A worker that compiles kernels gives signs of life."""

from numba import njit

from tidegate.pipeline.worker.compiling import compiling_counts


def test_a_step_of_compiling_a_kernel_is_a_sign_of_life() -> None:
    beats = [0]

    def beat() -> None:
        beats[0] += 1

    added = njit(lambda left, right: left + right)
    with compiling_counts(beat):
        assert added(1, 2) == 3
    compiled = beats[0]
    assert compiled >= 4, "its begin and end, and those of its passes"
    with compiling_counts(beat):
        assert added(3, 4) == 7
    assert beats[0] == compiled, "it is compiled already"
    assert added(1.0, 2.0) == 3.0
    assert beats[0] == compiled, "nothing listens any more"
