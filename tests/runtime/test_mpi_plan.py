"""What mpirun is told, and what the ranks it starts are told."""

import os
from pathlib import Path

import pytest

from runyard_runtime import diagnosis, hostnames, mpi, mpi_starter, processes, ranks

TWO = ["127.0.0.1", "127.0.0.2"]
FIVE = mpi.Mpirun("/env/bin/mpirun", 5)
FOUR = mpi.Mpirun("mpirun", 4)


@pytest.mark.parametrize(
    ("there", "found"),
    [
        ({"/env/bin/mpirun", "/usr/bin/mpirun"}, "/env/bin/mpirun"),
        ({"/usr/bin/mpirun"}, "mpirun"),
        (set(), None),
    ],
)
def test_the_environments_own_mpirun_comes_first(there: set[str], found: str | None) -> None:
    assert mpi.find("/env/bin/python", "/opt/bin::/usr/bin", there.__contains__) == found


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to …", ("Open MPI", 5)),
        ("mpirun (Open MPI) 4.1.4", ("Open MPI", 4)),
        ("mpirun (OpenRTE) 4.0.3", ("Open MPI", 4)),
        ("mpirun (Open MPI) 6.0.0rc1", ("Open MPI", 6)),
        ("mpirun (Open MPI) 3.1.6", ("Open MPI 3", None)),
        ("HYDRA build details:\n  Version: 4.2", ("MPICH", None)),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9", ("Intel MPI", None)),
        ("something else 1.0\nmore", ("something else 1.0", None)),
    ],
)
def test_only_open_mpi_is_known_by_its_version(said: str, known: tuple[str, int | None]) -> None:
    assert mpi.parse_version(said) == known


@pytest.mark.parametrize(
    ("addresses", "one_machine", "can_name", "has_network", "major", "mode"),
    [
        (TWO, True, True, True, 5, mpi.SEVERAL_HOSTS),
        (TWO, True, True, True, 4, mpi.SEVERAL_HOSTS),
        (TWO, True, False, True, 5, mpi.ONE_HOST),
        (["127.0.0.1"] * 2, True, True, True, 5, mpi.ONE_HOST),
        (TWO, True, True, False, 5, mpi.ONE_HOST),  # its daemons refuse the loopback interface
        (TWO, True, True, False, 4, mpi.SEVERAL_HOSTS),
        (["10.0.0.1", "10.0.0.2"], False, False, True, 5, mpi.SEVERAL_HOSTS),
        (["127.0.0.1"], True, True, True, 5, mpi.ONE_HOST),
    ],
)
def test_nodes_are_hosts_where_they_can_be(
    addresses: list[str],
    one_machine: bool,
    can_name: bool,
    has_network: bool,
    major: int,
    mode: str,
) -> None:
    assert mpi.choose_mode(addresses, one_machine, can_name, has_network, major) == mode


def test_open_mpi_5_starts_its_daemons_through_us() -> None:
    words = mpi.plan_mpirun(FIVE, mpi.SEVERAL_HOSTS, TWO, 2)
    assert words[:-3] == [
        *("/env/bin/mpirun", "--allow-run-as-root", "-np", "4", "--bind-to", "none"),
        *("--map-by", "ppr:2:node:OVERSUBSCRIBE", "--host", "127.0.0.1:2,127.0.0.2:2"),
        "--leave-session-attached",
        *("--prtemca", "plm", "ssh", "--prtemca", "plm_ssh_agent"),
        *("/bin/sh ../agent-0/mpi-launch", "--prtemca", "plm_ssh_no_tree_spawn", "1"),
    ]
    assert words[-3:-1] == ["/bin/sh", "-c"]


def test_open_mpi_4_has_other_words_for_the_same() -> None:
    words = mpi.plan_mpirun(FOUR, mpi.SEVERAL_HOSTS, TWO, 1)
    assert words[:-3] == [
        *("mpirun", "--allow-run-as-root", "-np", "2", "--bind-to", "none"),
        *("--map-by", "ppr:1:node", "--oversubscribe", "--host", "127.0.0.1:1,127.0.0.2:1"),
        "--leave-session-attached",
        *("--mca", "plm", "rsh", "--mca", "plm_rsh_agent", "/bin/sh ../agent-0/mpi-launch"),
        *("--mca", "plm_rsh_no_tree_spawn", "1"),
    ]


def test_one_host_has_all_ranks_and_no_daemons() -> None:
    words = mpi.plan_mpirun(FIVE, mpi.ONE_HOST, TWO, 2)
    assert "ppr:4:node:OVERSUBSCRIBE" in words
    assert "--host" not in words
    assert "--prtemca" not in words


def test_nodes_of_one_machine_talk_over_its_loopback() -> None:
    env = mpi.daemon_environment({}, 5, TWO, one_machine=True, place="/p")
    assert env == {
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,sm,tcp",
        "OMPI_MCA_btl_tcp_if_include": "lo",
        "OMPI_MCA_btl_sm_backing_directory": "/p",
        "TMPDIR": "/p",
    }
    older = mpi.daemon_environment({}, 4, TWO, one_machine=True, place="/p")
    assert older["OMPI_MCA_btl"] == "self,vader,tcp"
    assert older["OMPI_MCA_oob_tcp_if_include"] == "lo"


def test_machines_talk_over_the_network_they_share() -> None:
    env = mpi.daemon_environment({}, 5, ["10.0.3.4", "10.0.3.9"], one_machine=False, place="/p")
    assert env["OMPI_MCA_btl_tcp_if_include"] == "10.0.3.0/24"
    assert env["PRTE_MCA_prte_if_include"] == "10.0.3.0/24"
    assert "OMPI_MCA_btl" not in env  # there may be something faster


def test_a_container_has_its_own_memory_and_folders() -> None:
    env = mpi.daemon_environment({}, 5, TWO, one_machine=True, place="/p", contained=True)
    assert "/p" not in env.values()
    assert env["OMPI_MCA_smsc"] == "^cma"


def test_what_the_user_says_of_mpi_stays() -> None:
    given = {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "eth7"}
    env = mpi.daemon_environment(given, 5, TWO, one_machine=True, place="/p")
    assert {name: env[name] for name in given} == given
    assert "OMPI_MCA_pml" not in env


def test_schedulers_around_us_and_the_place_of_a_rank_do_not_mislead_mpirun() -> None:
    base = {
        "SLURM_JOB_ID": "7",
        "OMPI_COMM_WORLD_RANK": "3",
        "PMI_RANK": "3",
        "RUNYARD_RANK": "3",
        "HOME": "/h",
    }
    env = mpi.daemon_environment(base, 4, TWO, one_machine=False, place="/p")
    assert set(base) & set(env) == {"HOME"}


@pytest.mark.parametrize(
    ("addresses", "network"),
    [
        (["10.0.3.4", "10.0.3.9"], "10.0.3.0/24"),
        (["10.0.3.4", "10.0.4.9"], "10.0.0.0/16"),
        (["10.1.3.4", "10.2.4.9"], "10.0.0.0/8"),
        (["10.1.3.4", "192.168.0.1"], None),
        (["gpu-1", "gpu-2"], None),
        (["fd00::1", "fd00::2"], None),
    ],
)
def test_the_network_that_addresses_share(addresses: list[str], network: str | None) -> None:
    assert mpi.common_network(addresses) == network


def test_a_rank_gets_its_plan_and_what_mpi_says() -> None:
    planned = {
        "A": "planned",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        "TMPDIR": "/users",
    }
    told = {
        "A": "of mpirun",
        "B": "of mpirun",
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",  # all nodes are one host to MPI
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "PMIX_RANK": "1",
        "LD_LIBRARY_PATH": "/mpi/lib",
        "TMPDIR": "/place",
        mpi.PYTHON: "/python",
        mpi.STARTER: "code",
    }
    assert mpi.rank_environment(planned, told) == {
        "A": "planned",
        "TMPDIR": "/users",
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        "OMPI_COMM_WORLD_NODE_RANK": "0",
        "PMIX_RANK": "1",
        "LD_LIBRARY_PATH": "/mpi/lib",
    }


def test_a_rank_in_a_container_keeps_what_the_image_has() -> None:
    env = mpi.rank_environment({"A": "planned"}, {"A": "x", "PATH": "/image"}, is_whole=False)
    assert env == {"A": "planned", "PATH": "/image"}


def test_what_mpi_says_of_aborted_ranks_is_found_in_mpiruns_log() -> None:
    log = (
        " [127.0.0.2:00000] *** An error occurred in Socket closed\n"  # after a banner
        "[127.0.0.2:00000] *** reported by process [3829923841,3]\n"
        "[127.0.0.2:00000] *** on a NULL communicator\n"
        "[127.0.0.2:00000] *** Unknown error\n"
        "[127.0.0.2:00000] *** MPI_ERRORS_ARE_FATAL (processes will now abort,\n"
        "[127.0.0.2:00000] ***    and MPI will try to terminate your MPI job as well)\n"
        "[vm:8] *** An error occurred in MPI_Recv\n"
        "[vm:8] *** reported by process [1,0]\n"
        "[vm:8] *** MPI_ERR_TRUNCATE: message truncated\n"
        "something else\n"
    )
    assert mpi.words_by_rank(log) == {
        3: "An error occurred in Socket closed: Unknown error",
        0: "An error occurred in MPI_Recv: MPI_ERR_TRUNCATE: message truncated",
    }
    assert mpi.words_by_rank("") == {}


def test_a_rank_that_left_mpi_early_is_found_in_what_mpirun_says() -> None:
    log = (
        "prterun has exited due to process rank 3 with PID 20125 on node 127.0.0.2 exiting\n"
        "improperly. There are three reasons this could occur:\n"
    )
    assert mpi.rank_that_left("words\n" + log) == 3
    assert mpi.rank_that_left("") is None
    killed = {**mpi.leaving(0, 2), "exit_code": -15, "ended_at": 5.0}
    error = diagnosis.choose_cause([killed, mpi.leaving(3, 2)], ranks=4, nodes=2)
    assert (error["rank"], error["node"]) == (3, 1)
    assert error["message"].startswith("Rank 3 (node 1) ended with exit code 0, but without")


def test_the_places_of_two_jobs_and_nodes_differ_and_are_short() -> None:
    marker = f"job-{os.getpid()}"
    places = [mpi_starter.make_place(marker, node) for node in (0, 1, 0)]
    try:
        assert places[0] == places[2] != places[1]
        assert all(len(place) <= 40 for place in places)
        assert Path(places[0]).stat().st_mode & 0o777 == 0o700
    finally:
        for node in (0, 1):
            mpi_starter.clear(marker, node)
    assert not any(os.path.exists(place) for place in places)


def test_a_process_under_another_host_name_stays_who_it_is(tmp_path: Path) -> None:
    if not hostnames.can_enter():
        pytest.skip("this machine does not let us have host names of our own")
    before = os.uname().nodename
    child = os.fork()
    if child == 0:
        code = 1
        try:
            hostnames.enter("127.0.0.9")
            (tmp_path / "name").write_text(f"{os.uname().nodename} {os.getuid()}")
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "name").read_text() == f"127.0.0.9 {os.getuid()}"
    assert (tmp_path / "name").stat().st_uid == os.getuid()
    assert os.uname().nodename == before


def test_a_rank_that_was_over_before_it_was_seen_is_known_with_its_keeper(tmp_path: Path) -> None:
    rank = ranks.Rank(0, str(tmp_path), is_child=False)
    assert rank.is_expected
    (tmp_path / "rank-0.json").write_text('{"pid": 1234567, "keeper": 1234568, "at": 1.0}')
    (tmp_path / "rank-0.exit").write_text('{"exit_code": 0, "at": 2.0}')
    rank.look({})
    assert (rank.exit_code, rank.pid, rank.keeper) == (0, 1234567, 1234568)


def test_unknown_process_numbers_never_stand_for_all_processes() -> None:
    # All processes descend from 0: a rank whose keeper is not known once had 0 for it.
    assert processes.job_processes("a marker that nobody has", (0, 1)) == {}


class StoppedMember:
    """As much of the agent of a second node as its starter needs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.own = str(folder), str(folder / "agent-1")
        self.node, self.nice, self.marker, self.gang = 1, 0, "job-1", None
        self.plan = {"launcher": {"kind": "mpi", "nodes": 2}, "one_machine": True, "runtime": "/r"}
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_member_that_was_stopped_before_its_ranks_began_runs_no_daemon(tmp_path: Path) -> None:
    agent = StoppedMember(tmp_path)
    member = mpi_starter.ByMpirun(agent, TWO, FIVE, {"can_name_hosts": True})
    asked = {"node": 0, "kind": "prted", "to": "127.0.0.2", "command": "true"}
    member.look([asked], {})
    assert agent.notes == []
    assert member.is_over()
