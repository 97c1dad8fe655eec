"""What a machine has for nodes."""

import os

import pytest

from runyard.engines.machine import read_machine, visible


@pytest.mark.parametrize(
    ("variable", "gpus"),
    [
        (None, ("0", "1", "2")),
        ("", ()),
        ("-1", ()),
        ("1", ("1",)),
        ("2, 0", ("2", "0")),
        ("1,7,0", ("1",)),  # CUDA stops at the first it does not know
        ("GPU-5ebe9f43", ("GPU-5ebe9f43",)),
    ],
)
def test_gpus_that_are_hidden_from_the_server_stay_hidden(
    variable: str | None, gpus: tuple[str, ...]
) -> None:
    environ = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert visible(("0", "1", "2"), environ) == gpus


def test_this_machine_has_cores_and_memory() -> None:
    machine = read_machine({})
    assert 1 <= machine.cores <= (os.cpu_count() or 1)
    assert machine.memory_gb > 0
