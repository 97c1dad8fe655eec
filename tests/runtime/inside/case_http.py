# mypy: ignore-errors
"""What a script asks of the server, against a small real one."""

import contextlib
import hashlib
import io
import json
import os
import socket
import threading
import unittest

from azureml.core import Experiment, Run, Workspace
from azureml.core.run import get_run
from azureml.exceptions import (
    AuthenticationException,
    AzureMLException,
    ServiceException,
    UserErrorException,
)
from fake_server import RUN, FakeJob, working_directory
from runyard_runtime import files, wire
from runyard_runtime.api import Api


class FakeTime(object):
    """Time that passes only by sleeping."""

    def __init__(self):
        self.t = 0.0

    def now(self):
        return self.t

    def sleep(self, seconds):
        self.t += seconds


class Plot(object):
    """As matplotlib.pyplot or a figure."""

    def savefig(self, target, format):
        target.write(b"\x89PNG " + format.encode())


class JobTest(unittest.TestCase):
    def setUp(self):
        self.job = FakeJob()
        self.addCleanup(self.job.close)
        self.server = self.job.server
        self.run_ = Run.get_context()

    def file(self, name, content=b"content"):
        path = os.path.join(self.job.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as stream:
            stream.write(content)
        return path

    def kept(self, name, run_id=RUN):
        return self.server.blobs[self.server.files[run_id][name]]


class ReadTest(JobTest):
    def test_a_script_sees_what_it_logged(self):
        self.job.start_agent()
        for value in (1, 2):
            self.run_.log("loss", value)
        self.run_.log("nan", float("inf"))
        self.run_.log_row("row", x=1)
        self.run_.log_list("list", [1, 2])
        self.run_.tag("key", "value")
        self.run_.log_table("table", {"x": [1]})
        self.assertEqual(
            self.run_.get_metrics(),
            {
                "loss": [1, 2],
                "nan": float("inf"),
                "row": {"x": 1},
                "list": [1, 2],
                "table": {"x": [1]},
            },
        )
        self.assertEqual(set(self.run_.get_metrics(recursive=True)), {RUN})
        self.assertEqual(self.run_.get_tags(), {"key": "value"})
        self.assertEqual(self.run_.tags, {"key": "value"})
        self.run_.remove_tags("key")
        self.assertEqual(self.run_.get_tags(), {})

    def test_what_it_is(self):
        run = self.run_
        self.assertEqual(run.id, RUN)
        self.assertEqual(self.server.requests, [])  # so far nobody had to be asked
        self.assertEqual((run.number, run.type, run.status), (7, "azureml.scriptrun", "Running"))
        self.assertEqual((run.name, run.display_name), ("brave_sun", "brave_sun"))
        run.display_name = "calm_sea"
        self.assertEqual(run.name, "calm_sea")
        self.assertEqual(run.get_status(), "Running")
        self.assertEqual(run.get_detailed_status(), {"status": "Running", "details": None})
        self.assertIn("Id: " + RUN, str(run))
        self.assertEqual(run.get_portal_url(), self.server.url + "/runs/" + RUN)

    def test_details_have_v1s_keys(self):
        self.run_.upload_file("azureml-logs/70_driver_log.txt", io.BytesIO(b"hello"))
        details = self.run_.get_details()
        self.assertEqual(details["runId"], RUN)
        self.assertEqual(details["status"], "Running")
        self.assertEqual(list(details["logFiles"]), ["azureml-logs/70_driver_log.txt"])
        self.assertNotIn("endTimeUtc", details)
        self.assertNotIn("error", details)

    def test_properties_are_never_changed(self):
        self.run_.add_properties({"author": 1})
        self.assertEqual(self.run_.get_properties(), {"author": "1"})
        with self.assertRaisesRegex(UserErrorException, "author already"):
            self.run_.add_properties({"author": "2", "b": "c"})
        self.assertEqual(self.run_.properties, {"author": "1"})

    def test_experiment_and_workspace(self):
        workspace = self.run_.experiment.workspace
        self.assertEqual(self.run_.experiment.name, "exp")
        names = (workspace.name, workspace.subscription_id, workspace.resource_group)
        self.assertEqual(names, ("ws", "sub", "group"))
        self.assertEqual(self.server.requests, [])
        self.assertEqual(workspace.location, "local")
        self.assertEqual(workspace.get_details()["name"], "ws")
        self.assertEqual(Workspace.from_config().name, "ws")
        self.assertEqual(sorted(workspace.experiments), ["exp", "other"])
        self.assertEqual(workspace.get_run("sweep").id, "sweep")
        self.assertEqual(get_run(Experiment(workspace, "exp"), "sweep").type, "hyperdrive")
        self.assertEqual(
            {run.id for run in Experiment(workspace, "exp").get_runs()}, {RUN, "sweep"}
        )
        with self.assertRaisesRegex(UserErrorException, "cannot open the workspace 'another'"):
            Workspace("sub", "group", "another")
        with self.assertRaisesRegex(AttributeError, "has no 'compute_targets'"):
            workspace.compute_targets

    def test_the_parent_is_a_run_that_is_not_ours_to_write(self):
        parent = self.run_.parent
        self.assertEqual(parent.id, "sweep")
        self.assertIsNone(parent.parent)
        with self.assertRaisesRegex(AuthenticationException, "not yours\\.\n  why: Tokens"):
            parent.log("x", 1)

    def test_a_run_without_inputs_says_so(self):
        self.assertEqual(len(self.run_.input_datasets), 0)
        self.assertNotIn("train", self.run_.input_datasets)
        self.assertIsNone(self.run_.output_datasets.get("train"))
        with self.assertRaisesRegex(KeyError, "no input named 'train'") as caught:
            self.run_.input_datasets["train"]
        self.run_.input_datasets["train"] = "found by the script"
        self.assertEqual(self.run_.input_datasets["train"], "found by the script")
        self.assertIsInstance(caught.exception, AzureMLException)

    def test_what_a_job_does_not_have_says_what_to_do(self):
        calls = [
            lambda: self.run_.get_secret("x"),
            lambda: self.run_.wait_for_completion(show_output=True),
            lambda: self.run_.experiment.submit(None),
        ]
        for call in calls:
            with self.assertRaisesRegex(UserErrorException, "inside a job(.|\n)*fix: "):
                call()


class FileTest(JobTest):
    def test_a_file_is_sent_by_its_content_and_only_once(self):
        path = self.file("model.bin", b"x" * 3000000)  # several chunks
        self.run_.upload_file("outputs/model.bin", path)
        self.run_.upload_file("./outputs/copy.bin", path)
        self.assertEqual(len(self.kept("outputs/model.bin")), 3000000)
        self.assertEqual(self.kept("outputs/copy.bin"), self.kept("outputs/model.bin"))
        puts = [request for request in self.server.requests if request.startswith("PUT")]
        self.assertEqual(len(puts), 1)

    def test_streams_of_bytes_and_text(self):
        self.run_.upload_file("a", io.BytesIO(b"bytes"))
        self.run_.upload_file("b", io.StringIO("täxt"))
        self.run_.upload_file("empty", io.BytesIO())
        kept = [self.kept(name) for name in ("a", "b", "empty")]
        self.assertEqual(kept, [b"bytes", "täxt".encode("utf-8"), b""])

    def test_folders_and_several_files(self):
        self.file("out/a", b"1")
        self.file("out/deep/-1.index", b"2")
        os.symlink("nowhere", os.path.join(self.job.folder, "out", "dangling"))
        self.run_.upload_folder("outputs", os.path.join(self.job.folder, "out"))
        self.run_.upload_files(["x", "y"], [self.file("x"), self.file("y")])
        expected = ["outputs/a", "outputs/deep/-1.index", "x", "y"]
        self.assertEqual(self.run_.get_file_names(), expected)
        with self.assertRaisesRegex(UserErrorException, "2 names for 1 files"):
            self.run_.upload_files(["x", "y"], ["x"])
        with self.assertRaisesRegex(UserErrorException, "no folder"):
            self.run_.upload_folder("outputs", "not-there")

    def test_bad_names_and_paths_are_refused(self):
        for name in ("", ".", "..", "../x", "/etc/passwd", "a/../../b"):
            with self.assertRaisesRegex(UserErrorException, "not a name"):
                self.run_.upload_file(name, self.file("x"))
        with self.assertRaisesRegex(UserErrorException, "No such file"):
            self.run_.upload_file("x", "not-there")

    def test_a_file_that_changes_while_it_is_sent_is_measured_again(self):
        path = self.file("checkpoint", b"old")
        digest = hashlib.sha256(b"old").hexdigest()
        self.file("checkpoint", b"new")
        with self.assertRaises(files._Changed):
            list(files._send(path, digest, 3))
        with self.assertRaises(files._Changed):
            list(files._send(path, digest, 4))  # it was longer

    def test_download(self):
        self.run_.upload_file("outputs/model/a", io.BytesIO(b"A" * 2000000))
        self.run_.upload_file("outputs/model/deep/b", io.BytesIO(b"B"))
        self.run_.upload_file("outputs/modelling", io.BytesIO(b"C"))
        here = os.path.join(self.job.folder, "here")
        os.makedirs(here)
        with working_directory(here):
            self.run_.download_file("outputs/model/a")
            self.run_.download_file("outputs/model/deep/b", "given/name")
            self.run_.download_files("outputs/model", "cut", append_prefix=False)
            self.run_.download_files("outputs/model")
            found = sorted(
                os.path.join(top, name) for top, _, names in os.walk(".") for name in names
            )
            with open("a", "rb") as stream:
                self.assertEqual(stream.read(), b"A" * 2000000)
        expected = ["a", "cut/a", "cut/deep/b", "given/name"]
        expected += ["outputs/model/a", "outputs/model/deep/b"]
        self.assertEqual(found, ["./" + name for name in expected])

    def test_a_missing_file_names_those_that_are_there(self):
        self.run_.upload_file("outputs/model.pkl", io.BytesIO(b""))
        with self.assertRaisesRegex(UserErrorException, "It has: outputs/model.pkl") as caught:
            self.run_.download_file("outputs/model.pt", os.path.join(self.job.folder, "m"))
        self.assertTrue(caught.exception.message)
        self.assertEqual([name for name in os.listdir(self.job.folder) if "partial" in name], [])

    def test_images_become_files_of_the_run(self):
        self.run_.log_image("roc", plot=Plot())
        self.run_.log_image("charts/loss v1.5", path=self.file("x.jpg", b"jpg"))
        values = [(event["k"], event["n"], event["v"]) for event in self.job.logged()]
        expected = [("image", "roc", "roc.png")]
        expected.append(("image", "charts/loss v1.5", "charts/loss v1.5.jpg"))
        self.assertEqual(values, expected)
        self.assertEqual(self.kept("roc.png"), b"\x89PNG png")
        self.assertEqual(self.kept("charts/loss v1.5.jpg"), b"jpg")
        for wrong in ({}, {"path": "x", "plot": Plot()}):
            with self.assertRaisesRegex(UserErrorException, "exactly one"):
                self.run_.log_image("x", **wrong)
        with self.assertRaisesRegex(UserErrorException, "no savefig"):
            self.run_.log_image("x", plot=3)


class ChildTest(JobTest):
    def test_a_child_is_completed_or_failed_by_its_with_statement(self):
        self.job.start_agent()
        with self.run_.child_run("fold 1") as child:
            child.log("x", 1)
            child.tag("k", 2)
        self.assertEqual(child.get_status(), "Completed")
        self.assertEqual(child.get_metrics(), {"x": 1})
        self.assertEqual(child.get_tags(), {"k": "2"})
        self.assertEqual((child.name, child.parent.id), ("fold 1", RUN))
        with self.assertRaises(ZeroDivisionError):
            with self.run_.child_run() as child:
                1 / 0
        self.assertEqual(child.get_status(), "Failed")
        self.assertIn("ZeroDivisionError", child.get_details()["error"]["error"]["message"])

    def test_outputs_of_a_child_are_kept_when_it_ends(self):
        path = os.path.dirname(self.file("outputs/a", b"1"))
        child = self.run_.child_run(run_id="mine", outputs=path)
        child.complete()
        self.assertEqual(self.kept("outputs/a", "mine"), b"1")

    def test_many_children(self):
        self.run_.create_children(count=3)
        self.run_.create_children(tag_key="fold", tag_values=[1, None])
        self.assertEqual(len(list(self.run_.get_children())), 5)
        tagged = list(self.run_.get_children(tags={"fold": "1"}))
        self.assertEqual([child.tags for child in tagged], [{"fold": "1"}])
        self.assertEqual(len(list(self.run_.get_children(tags="fold"))), 2)
        tagged[0].child_run(run_id="grandchild").complete()
        found = list(self.run_.get_children(recursive=True))
        self.assertEqual(len(found), 6)
        completed = self.run_.get_children(recursive=True, status="Completed")
        self.assertEqual([child.id for child in completed], ["grandchild"])
        for wrong in ({}, {"count": 1, "tag_values": [1]}, {"tag_key": "x"}):
            with self.assertRaises(UserErrorException):
                self.run_.create_children(**wrong)

    def test_a_child_that_was_made_but_not_confirmed_is_found_again(self):
        self.server.forget_answers = 1
        child = self.run_.child_run("once")
        self.assertEqual([run.id for run in self.run_.get_children()], [child.id])
        self.server.forget_answers = 1
        child.complete()
        self.assertEqual(child.get_status(), "Completed")

    def test_a_descendant_that_is_found_by_its_id_is_logged_to_by_the_jobs_file(self):
        grandchild = self.run_.child_run(run_id="mine").child_run(run_id="deep")
        found = self.run_.experiment.workspace.get_run(grandchild.id)
        before = len(self.server.requests)
        found.log("x", 1)
        found.log_list("y", [2, 3])
        events = [(event["n"], event["v"], event["r"]) for event in self.job.logged()]
        self.assertEqual(events, [("x", 1, "deep"), ("y", [2, 3], "deep")])
        asked = self.server.requests[before:]
        self.assertEqual([one for one in asked if not one.startswith("GET")], [])
        self.assertLessEqual(len(asked), 2)

    def test_a_point_of_a_foreign_run_is_not_sent_twice(self):
        foreign = self.run_.experiment.workspace.get_run("sweep")
        foreign.get_status()
        self.server.unready = 1  # this one surely did nothing: it is repeated
        self.server.forget_answers = 1
        with self.assertRaisesRegex(ServiceException, "but did not answer(.|\n)*count twice"):
            foreign.log("x", 1)
        sent = [one for one in self.server.requests if one == "POST /api/v1/runs/sweep/metrics"]
        self.assertEqual(len(sent), 2)

    def test_an_id_that_is_taken_is_refused(self):
        with self.assertRaisesRegex(UserErrorException, "exists"):
            self.run_.child_run(run_id="sweep")

    def test_a_denied_cancel_only_warns(self):
        child = self.run_.child_run()
        with contextlib.redirect_stderr(io.StringIO()) as told:
            child.cancel()
            self.run_.cancel()
        self.assertIn("may not cancel", told.getvalue())
        self.assertIn("does nothing inside the job", told.getvalue())
        self.assertEqual(child.get_status(), "Running")


class EndTest(JobTest):
    def test_the_jobs_own_end_is_flushed_not_decided(self):
        self.job.start_agent()
        self.run_.log("x", 1)
        with contextlib.redirect_stderr(io.StringIO()):
            self.run_.fail("for a reason")
        self.run_.complete()
        self.assertEqual(self.job.agent.end, os.stat(self.job.events).st_size)
        self.assertEqual(self.run_.get_status(), "Running")

    def test_a_flush_that_nobody_answers_warns(self):
        self.run_.flush(0)  # nothing was logged: nothing to wait for
        self.run_.log("x", 1)
        with contextlib.redirect_stderr(io.StringIO()) as told:
            self.run_.flush(timeout_seconds=0.01)
        self.assertIn("shipped later", told.getvalue())

    def test_a_flush_waits_for_the_agent(self):
        self.run_.log("x", 1)
        time, end = FakeTime(), os.stat(self.job.events).st_size

        def sleep(seconds):
            time.sleep(seconds)
            with open(self.job.events + ".acked", "w") as stream:
                stream.write(str(end if time.t > 1 else end - 1))

        self.assertTrue(self.run_._events.flush(300, time.now, sleep))
        self.assertGreater(time.t, 1)


class TroubleTest(JobTest):
    def api(self, url=None, address_file=None, patience=120):
        self.time = FakeTime()
        url = url or self.server.url
        return Api(url, "secret", address_file, patience, self.time.now, self.time.sleep)

    def test_a_server_that_is_not_ready_is_asked_again(self):
        self.server.unready = 3
        self.assertEqual(self.api().get("/api/v1/runs/" + RUN)["id"], RUN)
        self.assertGreater(self.time.t, 0.1)

    def test_an_answer_that_is_lost_is_asked_for_again(self):
        self.server.forget_answers = 2
        self.assertEqual(self.api().get("/api/v1/runs/" + RUN)["id"], RUN)

    def test_a_moved_server_is_found_by_the_address_file(self):
        api = self.api("http://127.0.0.1:1", self.job.address_file)
        real_sleep = self.time.sleep

        def sleep(seconds):
            real_sleep(seconds)
            with open(self.job.address_file, "w") as stream:
                json.dump({"url": self.server.url}, stream)

        api._sleep = sleep
        self.assertEqual(api.get("/api/v1/runs/" + RUN)["id"], RUN)

    def test_patience_ends_with_an_explanation(self):
        with self.assertRaisesRegex(
            ServiceException, "did not answer(.|\n)*Nothing that was logged"
        ):
            self.api("http://127.0.0.1:1").get("/api/v1/runs/x")
        self.assertGreater(self.time.t, 100)

    def test_an_upload_starts_again_from_the_beginning(self):
        self.server.unready = 2
        self.server.forget_answers = 0
        path = self.file("x", b"y" * 1500000)
        files.upload(self.api(), RUN, [("x", path)])
        self.assertEqual(len(self.kept("x")), 1500000)

    def test_errors_carry_the_servers_words(self):
        with self.assertRaisesRegex(UserErrorException, "no run 'x'.\n  why: why\n  fix: fix"):
            self.api().get("/api/v1/runs/x")
        with self.assertRaisesRegex(AuthenticationException, "token is wrong"):
            Api(self.server.url, "other").get("/api/v1/runs/x")

    def test_an_image_that_cannot_be_sent_does_not_stop_training(self):
        self.run_._api = self.api("http://127.0.0.1:1", patience=0)
        with contextlib.redirect_stderr(io.StringIO()) as told:
            self.run_.log_image("x", plot=Plot())
        self.assertIn("was not kept", told.getvalue())

    def test_a_response_that_ends_early_is_fetched_again(self):
        # A server that promises ten bytes and sends four, then, asked again, sends all.
        listener = socket.socket()
        self.addCleanup(listener.close)
        listener.bind(("127.0.0.1", 0))
        listener.listen(2)

        def serve():
            for body in (b"half", b"whole file"):
                connection = listener.accept()[0]
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n" + body)
                connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        target = os.path.join(self.job.folder, "got")
        files.fetch(self.api("http://127.0.0.1:%d" % listener.getsockname()[1]), RUN, "x", target)
        with open(target, "rb") as stream:
            self.assertEqual(stream.read(), b"whole file")
        thread.join()

    def test_a_job_without_an_address_says_so(self):
        del os.environ[wire.SERVICE_ENDPOINT]
        with self.assertRaisesRegex(AzureMLException, "address of the server is not known"):
            Run.get_context().get_status()


if __name__ == "__main__":
    unittest.main()
