"""What a size promises and what a node gets of the machine there is."""

import pytest

from runyard.domain.compute import Machine, check_compute_name
from runyard.domain.errors import Invalid, NotFound
from runyard.planning.sizes import DEFAULT_SIZE, SIZES, crowding, find_size, share_out


@pytest.mark.parametrize("name", ["STANDARD_NC6", "Standard_NC6", "standard_nc6", "NC6"])
def test_sizes_are_found_however_they_are_written(name: str) -> None:
    size = find_size(name)
    assert (size.name, size.cores, size.gpus) == (name, 6, 1)


def test_no_size_is_v1s_default() -> None:
    assert find_size("").name == DEFAULT_SIZE


def test_an_unknown_size_offers_near_ones() -> None:
    with pytest.raises(NotFound, match="STANDARD_NC6"):
        find_size("STANDARD_NC66")


def test_every_size_makes_sense() -> None:
    assert all(size.cores > 0 and size.memory_gb > 0 for size in SIZES.values())


@pytest.mark.parametrize(
    ("size", "nodes", "machine", "cores", "gpus"),
    [
        ("STANDARD_D2_V2", 4, Machine(cores=16), 2, 0),
        ("STANDARD_D2_V2", 4, Machine(cores=2), 1, 0),
        ("STANDARD_NC6", 4, Machine(cores=16, gpus=("0",)), 4, 1),
        ("STANDARD_NC6", 2, Machine(cores=16, gpus=("0", "1")), 6, 1),
        ("STANDARD_NC24", 1, Machine(cores=16, gpus=("0",)), 16, 1),
        ("STANDARD_D2_V2", 0, Machine(cores=16), 2, 0),
    ],
)
def test_a_node_gets_its_share(
    size: str, nodes: int, machine: Machine, cores: int, gpus: int
) -> None:
    share = share_out(find_size(size), nodes, machine)
    assert (share.cores, share.gpus) == (cores, gpus)


def test_a_machine_that_is_large_enough_gives_no_warning() -> None:
    machine = Machine(cores=64, gpus=("0", "1", "2", "3"))
    assert share_out(find_size("STANDARD_NC6"), 4, machine).warnings == ()


def test_a_laptop_says_in_one_sentence_what_is_missing() -> None:
    (words,) = share_out(find_size("STANDARD_NC6"), 4, Machine(cores=8)).warnings
    assert words == (
        "4 nodes of STANDARD_NC6 (6 cores and 1 GPU each) share this machine, which has 8 cores "
        "and no GPU: each node works with 2 cores and no GPU."
    )


def test_one_of_a_thing_is_not_called_several() -> None:
    (words,) = share_out(find_size("STANDARD_NC6"), 1, Machine(cores=1)).warnings
    assert words.startswith("1 node of STANDARD_NC6 (6 cores and 1 GPU each) has to share this ")
    assert "which has 1 core and no GPU" in words


@pytest.mark.parametrize(("processes", "warned"), [(1, False), (4, False), (5, True), (40, True)])
def test_far_more_processes_than_cores_are_warned_of(processes: int, warned: bool) -> None:
    warnings = crowding(processes, Machine(cores=2))
    assert bool(warnings) is warned
    assert all(f"{processes} processes share this machine" in words for words in warnings)


def test_too_few_gpus_are_said_to_be_waited_for() -> None:
    (words,) = share_out(find_size("STANDARD_NC6"), 2, Machine(cores=64, gpus=("0",))).warnings
    assert words.endswith(
        "each node works with 6 cores, and a run waits until it can have its GPUs."
    )


@pytest.mark.parametrize("name", ["local", "AmlCompute", "1st", "a", "with space", "x" * 65])
def test_names_that_mean_something_else_or_nothing_are_refused(name: str) -> None:
    with pytest.raises(Invalid):
        check_compute_name(name)
