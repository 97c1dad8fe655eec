# mypy: ignore-errors
"""What the log family writes, under whatever interpreter runs this."""

import contextlib
import copy
import decimal
import io
import json
import multiprocessing
import os
import pickle
import threading
import time
import unittest

from azureml.core import Run
from azureml.exceptions import UserErrorException
from fake_server import RUN, FakeJob
from runyard_runtime import events, wire


class NumpyLike(object):
    """As numpy's and torch's arrays and scalars: no number, but it can become one."""

    def __init__(self, value):
        self.value = value

    def tolist(self):
        return self.value


class EagerTensor(object):
    """As tensorflow's: no tolist, no item."""

    def numpy(self):
        return NumpyLike(2.5)


class LongDouble(object):
    """As numpy's long double, whose tolist() gives itself."""

    def tolist(self):
        return self

    def __float__(self):
        return 1.25


class Float64(float):
    """As numpy's float64: a float with a text of its own."""

    def __repr__(self):
        return "np.float64(%s)" % float.__repr__(self)

    __str__ = __repr__


def log_in_child(run, count):
    for number in range(count):
        run.log("child", number)


class LogTest(unittest.TestCase):
    def setUp(self):
        self.job = FakeJob()
        self.addCleanup(self.job.close)
        self.run_ = Run.get_context()

    def values(self):
        return [event["v"] for event in self.job.logged()]

    def test_nothing_is_opened_before_the_first_log(self):
        self.assertFalse(os.path.exists(self.job.events))

    def test_a_scalar_is_one_line_of_the_contract(self):
        before = time.time()
        self.run_.log("accuracy", 0.5)
        (event,) = self.job.logged()
        self.assertTrue(before - 1 <= event.pop("t") <= time.time() + 1)
        self.assertEqual(event, {"e": "metric", "n": "accuracy", "v": 0.5})

    def test_numbers_of_all_kinds_arrive_as_numbers(self):
        given = [1, -7, 0.1, 1e300, 1e-9, True, Float64(0.3), NumpyLike(4), EagerTensor()]
        given += [decimal.Decimal("0.25"), LongDouble(), 2**70]
        for value in given:
            self.run_.log("x", value)
        expected = [1, -7, 0.1, 1e300, 1e-9, True, 0.3, 4, 2.5, 0.25, 1.25, float(2**70)]
        self.assertEqual(self.values(), expected)

    def test_strings_are_metrics_too(self):
        self.run_.log("prec@1", "97.123")
        self.run_.log("none", None)
        self.assertEqual(self.values(), ["97.123", None])

    def test_what_json_cannot_say_is_spelled_out(self):
        for value in (float("nan"), float("inf"), -float("inf"), Float64("nan"), 10**400):
            self.run_.log("x", value)
        words = ["nan", "inf", "-inf", "nan", "inf"]
        self.assertEqual(self.values(), [{"f": word} for word in words])

    def test_odd_names_stay_whole(self):
        names = ["ünï/çødé 😀", 'quo"te\\', "line\nbreak\u2028", "x" * 10000, ""]
        for name in names:
            self.run_.log(name, 1)
            self.run_.log(name, "text")
        self.assertEqual([event["n"] for event in self.job.logged()][::2], names)

    def test_half_a_character_does_not_make_a_line_that_nobody_can_read(self):
        self.run_.log("broken \ud800 name", 1)
        self.run_.log("x", "broken \udcff value")
        self.run_.log("x", "whole 😀 value")
        self.assertEqual(
            [(event["n"], event["v"]) for event in self.job.logged()],
            [("broken ? name", 1), ("x", "broken ? value"), ("x", "whole 😀 value")],
        )

    def test_a_value_that_no_chunk_can_hold_is_left_out_and_told_once(self):
        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            for _ in range(2):
                self.run_.log("huge", "x" * wire.CHUNK_LIMIT_BYTES)
        self.run_.log("small", 1)
        self.assertEqual([event["n"] for event in self.job.logged()], ["small"])
        self.assertEqual(told.getvalue().count("training goes on without it"), 1)
        self.assertIn("huge", told.getvalue())

    def test_a_step_is_kept(self):
        self.run_.log("loss", 1.5, step=3)
        self.run_.log("loss", 1.0, "described", 4.0)
        self.assertEqual([event["s"] for event in self.job.logged()], [3, 4])
        with self.assertRaisesRegex(UserErrorException, "whole number"):
            self.run_.log("loss", 1.0, step="three")

    def test_lists_rows_and_tables(self):
        self.run_.log_list("a", (number * number for number in range(4)))
        self.run_.log_list("b", NumpyLike([1.0, float("nan")]))
        self.run_.log_row("c", x=1, y=NumpyLike(2))
        self.run_.log_table("d", {"x": [1, 2], "y": NumpyLike([3, 4])})
        self.assertEqual(
            [(event["k"], event["v"]) for event in self.job.logged()],
            [
                ("list", [0, 1, 4, 9]),
                ("list", [1.0, {"f": "nan"}]),
                ("row", {"x": 1, "y": 2}),
                ("table", {"x": [1, 2], "y": [3, 4]}),
            ],
        )

    def test_values_that_are_no_lists_or_tables_are_refused(self):
        for value in ("text", 3, None):
            with self.assertRaisesRegex(UserErrorException, "not a list"):
                self.run_.log_list("a", value)
        with self.assertRaisesRegex(UserErrorException, "not a dict"):
            self.run_.log_table("a", [1, 2])

    def test_documents_are_dicts_or_json_with_three_keys(self):
        document = {"schema_type": "confusion_matrix", "schema_version": "1.0.0", "data": {}}
        self.run_.log_confusion_matrix("m", document)
        self.run_.log_accuracy_table("m", json.dumps(document))
        self.run_.log_residuals("m", document)
        self.run_.log_predictions("m", document)
        kinds = ["confusion_matrix", "accuracy_table", "residuals", "predictions"]
        self.assertEqual([event["k"] for event in self.job.logged()], kinds)
        self.assertEqual(self.values(), [document] * 4)
        with self.assertRaisesRegex(UserErrorException, "lacks schema_version, data"):
            self.run_.log_residuals("m", {"schema_type": "residuals"})
        with self.assertRaisesRegex(UserErrorException, "neither a dict nor a JSON object"):
            self.run_.log_residuals("m", "{")

    def test_tags_are_events(self):
        self.run_.tag("a")
        self.run_.set_tags({"b": 1})
        self.run_.remove_tags(["a"])
        events_ = [{key: event[key] for key in event if key != "t"} for event in self.job.logged()]
        expected = [
            {"e": "tag", "n": "a", "v": None},
            {"e": "tag", "n": "b", "v": "1"},
            {"e": "untag", "n": "a"},
        ]
        self.assertEqual(events_, expected)

    def test_logging_speaks_to_nobody(self):
        self.run_.log("x", 1)
        self.run_.log_row("x", a=1)
        self.run_.tag("x")
        self.assertEqual(self.job.server.requests, [])

    def test_threads_and_forked_processes_keep_lines_whole(self):
        self.run_.log("first", 1)  # the descriptor is open before the fork
        workers = [threading.Thread(target=log_in_child, args=(self.run_, 300)) for _ in range(3)]
        with contextlib.suppress(ValueError):  # no fork on this system
            fork = multiprocessing.get_context("fork")
            workers.insert(0, fork.Process(target=log_in_child, args=(self.run_, 300)))
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.assertEqual(len(self.job.logged()), 1 + 300 * len(workers))

    def test_processes_that_opened_the_file_themselves_append_to_it(self):
        other = events.EventFile(self.job.events)
        for number in range(10):
            self.run_.log("x", number)
            other.append(events.scalar_line("x", number, "}\n"))
        os.close(other._fd)
        self.assertEqual(self.values(), [number // 2 for number in range(20)])

    def test_a_run_can_be_copied_and_pickled(self):
        self.run_.log("x", 1)
        pickle.loads(pickle.dumps(self.run_)).log("x", 2)
        copy.deepcopy(self.run_).log("x", 3)
        self.assertEqual(self.values(), [1, 2, 3])

    def test_asking_for_the_run_often_opens_its_file_once(self):
        for number in range(50):
            Run.get_context().log("x", number)
        self.assertIs(Run.get_context()._events, self.run_._events)
        self.assertEqual(len(self.job.logged()), 50)

    def test_a_script_that_closes_all_files_goes_on_logging(self):
        self.run_.log("x", 1)
        os.close(self.run_._events._fd)
        self.run_.log("x", 2)
        self.assertEqual(self.values(), [1, 2])

    def test_a_full_disk_is_told_once_and_training_goes_on(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        self.run_._events._fd = os.open("/dev/full", os.O_WRONLY)
        self.addCleanup(os.close, self.run_._events._fd)
        self.addCleanup(setattr, self.run_._events, "_warned", set())
        with contextlib.redirect_stderr(io.StringIO()) as told:
            self.run_.log("x", 1)
            self.run_.log("x", 2)
        self.assertEqual(told.getvalue().count("could not be written"), 1)
        self.assertIn("No space left", told.getvalue())
        self.run_._events._fd = None

    def test_a_line_after_a_torn_one_starts_anew(self):
        self.run_.log("x", 1)
        os.write(self.run_._events._fd, b'{"e":"met')
        self.run_._events._torn = True
        self.run_.log("x", 2)
        with open(self.job.events, "rb") as stream:
            lines = stream.read().splitlines()
        self.assertEqual([line[:8] for line in lines], [b'{"e":"me'] * 3)
        self.assertEqual(json.loads(lines[-1].decode())["v"], 2)

    def test_a_line_ends_with_the_run_it_belongs_to(self):
        child = self.run_._job.run("child\u00e9", {}, owned=True)
        child.log("x", 1)
        child.log("x", "text")
        self.run_.log("x", 2)
        owners = [event.get("r", RUN) for event in self.job.logged()]
        self.assertEqual(owners, ["child\u00e9", "child\u00e9", RUN])

    def test_logging_costs_little_more_than_a_flushed_json_line(self):
        log, count = self.run_.log, 2000
        with open(os.path.join(self.job.folder, "plain.jsonl"), "a") as stream:

            def plain():
                for number in range(count):
                    line = {"e": "metric", "t": time.time(), "n": "loss", "v": number * 0.37}
                    stream.write(json.dumps(line) + "\n")
                    stream.flush()

            def ours():
                for number in range(count):
                    log("loss", number * 0.37)

            best = min(self.ratio(ours, plain) for _ in range(5))
        self.assertLess(best, 3.0)

    @staticmethod
    def ratio(first, second):
        start = time.perf_counter()
        first()
        middle = time.perf_counter()
        second()
        return (middle - start) / (time.perf_counter() - middle)

    def test_the_quick_way_and_the_long_way_write_the_same(self):
        quick = json.loads(events.scalar_line("näme", 0.1, events.line_end("r")).decode())
        long = json.loads(events.metric_line("scalar", "näme", 0.1, None, "r").decode())
        quick.pop("t"), long.pop("t")
        self.assertEqual(quick, long)


if __name__ == "__main__":
    unittest.main()
