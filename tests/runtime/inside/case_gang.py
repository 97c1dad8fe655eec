# mypy: ignore-errors
"""What agents of one job share: the board, ports, the forming of a group; on every interpreter."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

from runyard_runtime import board, gang, idle_ranks, launch, ports, processes, ranks, supervision


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder, True)

    def path(self, name):
        return os.path.join(self.folder, name)


class TheBoard(Folder):
    def open(self):
        return board.FolderBoard(self.folder, supervision.Wake())

    def test_what_one_posts_another_reads_in_order(self):
        one, two = self.open(), self.open()
        self.assertEqual(two.read(0), ([], 0))
        one.post({"node": 0, "kind": "a"})
        one.post({"node": 0, "kind": "b", "text": "ü\n–"})
        notes, place = two.read(0)
        self.assertEqual([note["kind"] for note in notes], ["a", "b"])
        self.assertEqual(notes[1]["text"], "ü\n–")
        self.assertEqual(two.read(place), ([], place))
        one.post({"node": 0, "kind": "c"})
        self.assertEqual([note["kind"] for note in two.read(place)[0]], ["c"])

    def test_a_torn_note_harms_no_other(self):
        one = self.open()
        one.post({"kind": "before"})
        with open(self.path("board.jsonl"), "ab") as stream:
            stream.write(b'{"kind": "to')
        notes, place = one.read(0)
        self.assertEqual(notes, [{"kind": "before"}])
        one.post({"kind": "after"})
        self.assertEqual(one.read(place)[0], [{"kind": "after"}])

    def test_many_writers_lose_nothing(self):
        def write(number):
            mine = self.open()
            for count in range(50):
                mine.post({"kind": "x", "node": number, "count": count, "text": "y" * 500})

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        notes, _ = self.open().read(0)
        self.assertEqual(len(notes), 200)
        for number in range(4):
            mine = [note["count"] for note in notes if note["node"] == number]
            self.assertEqual(mine, list(range(50)))

    def test_a_folder_that_is_gone_is_not_waited_for(self):
        one = self.open()
        shutil.rmtree(self.folder)
        one.post({"kind": "too late"})
        self.assertFalse(one.try_to_post({"kind": "too late"}))
        self.assertEqual(one.read(0), ([], 0))


class Ports(Folder):
    def reserve(self, count=1, address="127.0.0.1"):
        reservation = ports.Reservation().take(address, count)
        self.addCleanup(reservation.release)
        return reservation

    def test_two_reservations_have_no_port_in_common(self):
        one, two = self.reserve(20), self.reserve(20)
        self.assertEqual(len(set(one.ports) | set(two.ports)), 40)
        low, high = ports.choices()
        self.assertTrue(all(low <= port < high for port in one.ports))

    def test_a_port_on_which_somebody_listens_is_not_free(self):
        for address in ("127.0.0.1", ""):
            with socket.socket() as listener:
                listener.bind((address, 0))
                listener.listen(1)
                self.assertFalse(ports.is_free("127.0.0.1", listener.getsockname()[1]))

    def test_a_reserved_port_can_be_listened_on(self):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", self.reserve().ports[0]))

    @unittest.skipUnless(sys.platform.startswith("linux"), "others have no abstract sockets")
    def test_a_keeper_holds_the_port_when_the_agent_is_gone(self):
        mine = self.reserve()
        says, hears = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(hears)
            os.read(says, 1)
            os._exit(0)
        os.close(says)
        mine.release()
        other = ports.Reservation()
        self.assertFalse(other._hold(mine.ports[0]))
        os.close(hears)
        os.waitpid(child, 0)
        self.assertTrue(other._hold(mine.ports[0]))
        other.release()

    def test_the_ports_of_an_earlier_agent_are_taken_as_they_are(self):
        mine = self.reserve(2)
        again = ports.Reservation().take_again(mine.ports)
        self.assertEqual(again.ports, mine.ports)

    def test_an_address_of_another_machine_is_refused_in_words(self):
        with self.assertRaisesRegex(ports.NoPorts, "203.0.113.9 is not an address"):
            ports.Reservation().take("203.0.113.9", 1)

    def test_ports_lie_below_those_of_outgoing_connections(self):
        for text, choice in (
            ("32768\t60999\n", (20000, 32768)),
            ("25000 60000", (20000, 25000)),
            ("15000 60000", (10000, 15000)),
            ("1024 65535", (20000, 32768)),
            ("nonsense", (20000, 32768)),
        ):
            with open(self.path("range"), "w") as stream:
                stream.write(text)
            self.assertEqual(ports.choices(self.path("range")), choice)
        self.assertEqual(ports.choices(self.path("none")), (20000, 32768))

    def test_the_address_of_a_node(self):
        self.assertEqual(ports.own_address(0, True, ""), "127.0.0.1")
        second = "127.0.0.2" if ports.can_listen("127.0.0.2") else "127.0.0.1"
        self.assertEqual(ports.own_address(1, True, ""), second)

    def test_an_address_that_other_machines_cannot_reach_is_refused_in_words(self):
        for url in ("http://127.0.0.1:8000/x", "http://no-such-host.invalid:8000"):
            with self.assertRaisesRegex(ports.NoPorts, "Other nodes cannot reach this one"):
                ports.own_address(3, False, url)


class Stopped(Exception):
    pass


class FakeAgent(object):
    """As much of an agent as a gang needs."""

    def __init__(self, folder, node, **plan):
        self.folder = folder
        self.node = node
        self.plan = dict({"nodes": 2, "group_seconds": 30}, **plan)
        self.wake = supervision.Wake()

    def pause(self, seconds):
        self.wake.wait(seconds)
        if self.wake.asked_to_stop:
            raise Stopped

    def is_wanted(self):
        return True


class TheGroup(Folder):
    def join(self, node, **plan):
        one = gang.Gang(FakeAgent(self.folder, node, **plan))
        one.come(launch.Host("127.0.0.%d" % (node + 1), "n%d" % node, [20000 + node]), {"x": node})
        return one

    def test_all_get_the_same_hosts_and_data(self):
        leader, member = self.join(0), self.join(1)
        found = []
        thread = threading.Thread(target=lambda: found.append(member.gather(None)))
        thread.start()
        hosts, data = leader.gather([{"A": "1"}, {}])
        thread.join()
        self.assertEqual(found, [(hosts, data)])
        self.assertEqual([host.ports for host in hosts], [[20000], [20001]])
        self.assertEqual(data, [{"A": "1"}, {}])
        self.assertEqual(leader.facts(), [{"x": 0}, {"x": 1}])
        # who takes over is told the same at once
        self.assertEqual(self.join(1).gather(None), found[0])
        self.assertEqual(len(gang.Gang(FakeAgent(self.folder, 0)).here), 2)

    def test_who_is_missing_is_named(self):
        leader = self.join(0, nodes=3, group_seconds=0.05, node_ids=["a", "b", "c"])
        with self.assertRaises(gang.GroupNotFormed) as caught:
            leader.gather(None)
        self.assertIn("Node 1 (b) and node 2 (c) of 3 have not come up", str(caught.exception))

    def test_a_leader_that_never_comes_is_named_too(self):
        with self.assertRaises(gang.GroupNotFormed) as caught:
            self.join(1, group_seconds=0.05).gather(None)
        self.assertIn("Node 0 of 2 has not come up within 0.1 s", str(caught.exception))

    def test_a_leader_that_is_up_is_waited_for_however_long_it_prepares(self):
        leader, looks = self.join(0), []

        class Member(FakeAgent):
            def pause(self, seconds):
                looks.append(seconds)
                if len(looks) == 10:  # each of them long after the group's time
                    leader.post("group", hosts=[["127.0.0.1", "n0", []]], data=None)

        member = gang.Gang(Member(self.folder, 1, group_seconds=1e-9))
        hosts, _ = member.gather(None)
        self.assertEqual([host.hostname for host in hosts], ["n0"])

    def test_a_node_that_cannot_begin_ends_the_waiting_of_all(self):
        leader, member = self.join(0), self.join(1)
        member.give_up({"code": "LayoutFailed", "message": "no room"})
        with self.assertRaises(gang.NodeFailed) as caught:
            leader.gather(None)
        self.assertEqual(str(caught.exception), "Node 1: no room")
        self.assertEqual(caught.exception.code, "LayoutFailed")
        self.assertTrue(leader.is_over())

    def test_a_stop_ends_the_waiting_of_all(self):
        leader, member = self.join(0), self.join(1)
        leader.post("stop", reason=supervision.STOPPED)
        with self.assertRaises(Stopped):
            member.gather(None)

    def test_an_unknown_board_is_refused_in_words(self):
        with self.assertRaisesRegex(ranks.CannotBegin, "no board 'pigeons'"):
            gang.Gang(FakeAgent(self.folder, 0, board="pigeons"))

    def test_a_leader_waits_for_all_and_a_member_for_nobody(self):
        leader, member = self.join(0), self.join(1)
        leader.post("group", hosts=[], data=None)
        leader.read()
        self.assertFalse(leader.is_over())
        self.assertTrue(member.is_over())
        end = {"ranks": [{"rank": 1, "exit_code": 0}], "candidates": []}
        member.say_over(dict(end, stopped=False, timed_out=True))
        leader.read()
        self.assertTrue(leader.is_over())
        self.assertEqual(leader.good, {1})
        mine = dict(end, ranks=[{"rank": 0, "exit_code": 3}], stopped=False, timed_out=False)
        told = gang.combined([leader.over[1], mine])
        self.assertEqual([one["rank"] for one in told["ranks"]], [0, 1])
        self.assertTrue(told["timed_out"])

    def test_who_failed_first_is_told_by_the_order_of_notes_where_clocks_differ(self):
        for behind, order in ((3600, [0, 1]), (-3600, [0, 1]), (2, [1, 0])):
            times = [1000.0, 1001.0 - behind]
            failed = [{"node": node, "at": at} for node, at in enumerate(times)]
            end = {"ranks": [], "stopped": False, "timed_out": False}
            over = [
                dict(end, node=node, candidates=[{"rank": node, "ended_at": at}])
                for node, at in enumerate(times)
            ]
            found = gang.combined(over, failed)["candidates"]
            found.sort(key=lambda one: (one["ended_at"], one["rank"]))
            self.assertEqual([one["rank"] for one in found], order, behind)
        self.assertEqual(gang.clocks_behind([{"node": 1}]), {})

    def test_what_starts_ranks_sees_each_note_once_also_those_before_it_came(self):
        class Supervisor(object):
            reason = idle_ranks = None

            def failure_to_end_for(self):
                return None

            starter_failure = failure_to_end_for

        self.join(0).post("prted", command="x")
        taking_over = self.join(1)
        _, notes = taking_over.look(Supervisor(), set())
        self.assertEqual([note["kind"] for note in notes], ["here", "prted", "here"])
        self.assertEqual(taking_over.look(Supervisor(), set()), (None, []))


class FakeRank(object):
    def __init__(self, number, serves=False):
        self.number = number
        self.called = "rank %d" % number
        self.serves = serves
        self.exit_code = None
        self.is_done = False
        self.sent = []

    def let_go(self):
        self.is_done = True

    def send(self, number):
        self.sent.append(number)


class IdleRanks(unittest.TestCase):
    def setUp(self):
        self.clock = 0.0
        self.notes = []

    def watch(self, numbers, marker="no-such-job", seconds=idle_ranks.IDLE_SECONDS):
        note = self.notes.append
        return idle_ranks.IdleRanks(numbers, marker, note, seconds, now=lambda: self.clock)

    def test_servers_end_when_all_others_are_done(self):
        server, worker = FakeRank(2, serves=True), FakeRank(1)
        watch = self.watch([0, 1])
        watch.look([server, worker], set())
        self.assertEqual(server.sent, [])
        watch.look([server], {0, 1})
        watch.look([server], {0, 1})
        self.assertEqual((server.sent, server.is_done), ([signal.SIGTERM], True))
        self.clock = 10.0
        watch.look([server], {0, 1})
        self.assertEqual(server.sent, [signal.SIGTERM, signal.SIGKILL])

    def test_a_worker_that_only_waits_beside_a_finished_first_is_ended(self):
        worker, server = FakeRank(1), FakeRank(2, serves=True)
        watch = self.watch([0, 1])
        for second in range(60):
            self.clock = float(second)
            watch.look([worker, server], set())
        self.assertEqual(worker.sent, [], "the first worker still runs")
        begun = self.clock
        while not worker.sent and self.clock < begun + 60:
            self.clock += 1
            watch.look([worker, server], {0})
        self.assertAlmostEqual(self.clock - begun, idle_ranks.IDLE_SECONDS, delta=2)
        self.assertTrue(worker.is_done)
        self.assertEqual(server.sent, [], "a worker may still need it")

    @unittest.skipUnless(os.path.isdir("/proc/self"), "what processes use is read from /proc")
    def test_a_worker_that_computes_is_not_ended(self):
        marker = "busy-job-%d" % os.getpid()
        env = dict(os.environ, RUNYARD_JOB_KEY=marker, RUNYARD_RANK="1")
        code = "print('go', flush=True)\nwhile True: pass"
        child = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
        try:
            child.stdout.readline()
            worker = FakeRank(1)
            watch = self.watch([0, 1], marker, seconds=20.0)
            watch.look([worker], {0})
            before = idle_ranks.ticks_of([worker], marker)[worker]
            while idle_ranks.ticks_of([worker], marker)[worker] < before + 50:
                pass
            self.clock = 21.0  # half a second of work in that time is busy
            watch.look([worker], {0})
            self.assertEqual(worker.sent, [])
        finally:
            child.kill()
            child.communicate()


class Ranks(Folder):
    def expect(self, serves=False):
        return ranks.expect(launch.Process(0, 3, 0, [], {}, "log", serves, False), self.folder)

    def test_an_expected_rank_runs_once_it_has_claimed_its_place(self):
        rank = self.expect()
        rank.look({})
        self.assertTrue(rank.is_expected)
        me = os.getpid()
        with open(self.path("rank-3.json"), "w") as stream:
            stream.write('{"pid": %d, "start": %d, "at": 7.0}' % (me, processes.start_time(me)))
        rank.look({})
        self.assertFalse(rank.is_expected)
        self.assertEqual((rank.pid, rank.started_at, rank.exit_code), (me, 7.0, None))

    def test_an_expected_rank_that_nobody_starts_is_lost(self):
        rank = self.expect()
        rank.give_up()
        self.assertTrue(rank.is_lost and rank.has_failed)

    def test_what_is_not_known_is_not_everything(self):
        # Every process descends from 0 and 1: a rank that never was must not have them as keeper.
        self.assertEqual(processes.job_processes("no-such-job", {0, 1, -1}), {})
        rank = self.expect()
        rank.give_up()
        direct = ranks.Direct(self.folder, self.folder, 0, None, "")
        wake, notes = supervision.Wake(), []
        supervisor = supervision.Supervisor(
            [rank], wake, 0.1, None, "no-such-job", notes.append, direct
        )
        self.assertEqual(supervisor.processes(), {})

    def test_a_rank_that_was_let_go_ends_well_also_for_the_next_agent(self):
        self.expect(serves=True).let_go()
        with open(self.path("rank-3.exit"), "w") as stream:
            stream.write('{"exit_code": -15, "at": 1}')
        rank = self.expect(serves=True)
        rank.look({})
        self.assertEqual(rank.exit_code, -15)
        self.assertFalse(rank.has_failed)


if __name__ == "__main__":
    unittest.main()
