# mypy: ignore-errors
"""A scoring worker with an entry script: how it starts, answers several sides, fails and ends."""

import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

from azureml.contrib.services.aml_request import AMLRequest, rawhttp
from azureml.contrib.services.aml_response import AMLResponse
from runyard_runtime import scoring, scoring_json, scoring_requests, scoring_wire

ECHO = """
    import os
    started = []

    def init():
        started.append(1)
        print("init was called")

    def run(data):
        if data == "fail":
            raise KeyError("no such thing")
        if data == "exit":
            raise SystemExit(4)
        if data == "stop":
            os.kill(os.getpid(), 15)
        return {"got": data, "started": len(started)}
"""


class Worker(object):
    """A worker as its own process, in a folder laid out as the platform does it."""

    def __init__(self, script=ECHO, models=(), entry_script="score.py", files=None, **more):
        self.folder = tempfile.mkdtemp(prefix="ry-")
        self.path = os.path.join(self.folder, "w0.sock")
        self.log = os.path.join(self.folder, "log")
        if script is not None:
            self.write(os.path.join("work", entry_script), textwrap.dedent(script))
        for name, text in (files or {}).items():
            self.write(os.path.join("work", name), text)
        for name, version, content in models:
            for file, text in content.items():
                self.write(os.path.join("work", "azureml-models", name, version, file), text)
        spec = {
            "scorer": "script",
            "models_dir": "azureml-models",
            "models": [
                {
                    "name": name,
                    "version": version,
                    "path": "azureml-models/%s/%s" % (name, version),
                    "is_folder": True,
                }
                for name, version, _ in models
            ],
            "entry_script": entry_script,
            "source_directory": ".",
            "app_root": ".",
            "sockets": [self.path],
        }
        spec.update(more)
        self.write("work/spec.json", json.dumps(spec))
        self.start()

    def start(self):
        environment = dict(os.environ, RUNYARD_JOB_DIR=self.folder)
        # As jobs have it, whatever the locale here.
        environment.update(PYTHONIOENCODING="utf-8", PYTHONUNBUFFERED="1")
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "runyard_runtime.scoring", "spec.json", "0"],
                cwd=os.path.join(self.folder, "work"),
                env=environment,
                stdout=log,
                stderr=log,
            )

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)

    def said(self):
        with open(self.log, encoding="utf-8") as stream:
            return stream.read()

    def ready(self):
        while not os.path.exists(self.path):
            if self.process.poll() is not None:
                raise AssertionError(self.said())
            time.sleep(0.01)
        return self

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder)

    def __enter__(self):
        return self.ready()

    def __exit__(self, *problem):
        self.end()


class Side(object):
    """The front end's side of one connection."""

    def __init__(self, worker):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(60)
        try:
            self.socket.connect(worker.path)
        except OSError:
            self.socket.close()
            raise
        self.stream = self.socket.makefile("rb")
        self.hello = scoring_wire.read_hello(self.stream)

    def send(self, *requests):
        self.socket.sendall(scoring_wire.encode_batch(requests))

    def replies(self):
        return scoring_wire.read_replies(self.stream)

    def ask(self, body, **head):
        self.send((json.dumps(head).encode("utf-8") if head else b"", body))
        [reply] = self.replies()
        return reply

    def close(self):
        self.stream.close()
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        self.close()


class FramesTest(unittest.TestCase):
    def test_a_batch_is_found_when_its_last_byte_has_come(self):
        requests = [(b"", b"{}"), (b'{"path":"/score"}', b""), (b"", b"\0" * 70000)]
        data = scoring_wire.encode_batch(requests)
        self.assertEqual(scoring_wire.split_batch(data), requests)
        self.assertEqual(scoring_wire.split_batch(bytearray(data)), requests)
        self.assertEqual(scoring_wire.read_batch(io.BytesIO(data)), requests)
        for end in list(range(60)) + [len(data) - 1]:
            self.assertIsNone(scoring_wire.split_batch(data[:end]))
        self.assertEqual(scoring_wire.split_batch(scoring_wire.encode_batch([])), [])

    def test_what_is_no_frame_is_refused(self):
        good = scoring_wire.encode_batch([(b"", b"{}")])
        with self.assertRaisesRegex(scoring_wire.Broken, "behind the batch"):
            scoring_wire.split_batch(good + b"x")
        with self.assertRaisesRegex(scoring_wire.Broken, "claims"):
            scoring_wire.split_batch(b"\0\0\0\1" + b"\xff" * 8)


class JsonTest(unittest.TestCase):
    def test_the_standard_library_is_strict_about_what_is_not_json(self):
        self.assertEqual(scoring_json.read(b'{"a": [1, 2.5, "\xc3\xa4"]}'), {"a": [1, 2.5, "\xe4"]})
        for body, words in (
            (b"", "empty"),
            (b"[NaN]", "the value NaN"),
            (b"[-Infinity]", "the value -Infinity"),
            (b"[1", "not JSON"),
            (b"\xff", "not UTF-8"),
            (b"[" * 200000, "nested too deeply"),
        ):
            with self.assertRaisesRegex(ValueError, words):
                scoring_json.read(body)

    def test_nan_becomes_null(self):
        self.assertEqual(scoring_json.write({"a": [float("nan"), 1.5]}), b'{"a":[null,1.5]}')


class AnsweringTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.worker = Worker().ready()

    @classmethod
    def tearDownClass(cls):
        cls.worker.end()

    def setUp(self):
        self.side = Side(self.worker)
        self.addCleanup(self.side.close)

    def test_run_gets_the_body_as_text_after_one_init(self):
        status, head, body = self.side.ask('{"ä": 1}'.encode("utf-8"))
        self.assertEqual(
            (status, json.loads(body.decode())), (200, {"got": '{"ä": 1}', "started": 1})
        )
        headers = json.loads(head.decode())["headers"]
        self.assertEqual(headers["Content-Type"], "application/json")
        self.assertGreaterEqual(float(headers["x-ms-run-fn-exec-ms"]), 0)

    def test_the_hello_says_what_is_served(self):
        self.assertEqual(self.side.hello["scorer"], "script")
        self.assertEqual(self.side.hello["max_batch"], 1)
        self.assertFalse(self.side.hello["headers"])

    def test_readiness_is_told_by_a_file(self):
        self.assertTrue(os.path.exists(os.path.join(self.worker.folder, "ready-0")))

    def test_several_requests_are_answered_in_their_order(self):
        self.side.send(*((b"", b"%d" % number) for number in range(5)))
        got = [json.loads(body.decode())["got"] for _, _, body in self.side.replies()]
        self.assertEqual(got, ["0", "1", "2", "3", "4"])

    def test_who_only_looks_does_not_disturb(self):
        for _ in range(30):
            Side(self.worker).close()
        gone = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        gone.connect(self.worker.path)
        gone.close()
        self.assertEqual(self.side.ask(b"1")[0], 200)

    def test_connections_are_answered_in_turn(self):
        with Side(self.worker) as other:
            for _ in range(3):
                self.assertEqual(self.side.ask(b"1")[0], 200)
                self.assertEqual(other.ask(b"2")[0], 200)
            self.side.send((b"", b"3"))
            other.send((b"", b"4"))
            self.assertIn(b'"4"', other.replies()[0][2])
            self.assertIn(b'"3"', self.side.replies()[0][2])

    def test_a_connection_that_stops_in_the_middle_holds_up_nobody(self):
        half = scoring_wire.encode_batch([(b"", b"x" * 1000)])
        with Side(self.worker) as stuck, Side(self.worker) as deaf:
            stuck.socket.sendall(half[:600])
            deaf.send((b"", b"y" * (8 << 20)))  # and does not read its reply
            self.assertEqual(self.side.ask(b"1")[0], 200)
            stuck.socket.sendall(half[600:])
            self.assertEqual(stuck.replies()[0][0], 200)
            self.assertEqual(self.side.ask(b"1")[0], 200)
            self.assertEqual(len(json.loads(deaf.replies()[0][2].decode())["got"]), 8 << 20)

    def test_what_is_no_frame_ends_its_connection_alone(self):
        with Side(self.worker) as other:
            other.socket.sendall(b"\0\0\0\1" + b"\xff" * 8)
            self.assertEqual(other.stream.read(), b"")
        self.assertEqual(self.side.ask(b"1")[0], 200)
        self.assertIn("A connection broke: a frame claims", self.worker.said())

    def test_an_error_of_the_script_is_its_answer_and_its_log(self):
        status, head, body = self.side.ask(b"fail")
        self.assertEqual(status, 500)
        self.assertEqual(json.loads(body.decode())["error"], "KeyError: 'no such thing'")
        self.assertIn("x-ms-run-function-failed", head.decode())
        self.assertIn('raise KeyError("no such thing")', self.worker.said())
        self.assertEqual(self.side.ask(b"exit")[0], 500)
        self.assertEqual(self.side.ask(b"1")[0], 200)

    def test_requests_that_a_script_does_not_get(self):
        for body, head, status, words in (
            (b"\xff", {}, 400, "not UTF-8"),
            (b"{}", {"method": "PUT", "path": "/score"}, 405, "PUT is not served"),
            (b"{}", {"method": "POST", "path": "/v2/models/m/infer"}, 404, "/score alone"),
            (b"..", {"headers": {"content-encoding": "gzip"}}, 415, "encoding gzip"),
        ):
            found = self.side.ask(body, **head)
            self.assertEqual(found[0], status)
            self.assertIn(words, json.loads(found[2].decode())["error"])

    def test_a_query_is_passed_on_as_json(self):
        found = self.side.ask(b"", method="GET", path="/score", query="a=1&b=x&b=y")
        got = json.loads(json.loads(found[2].decode())["got"])
        self.assertEqual(got, {"a": 1, "b": ["x", "y"]})


class SceneTest(unittest.TestCase):
    LOOK = """
        import os
        import beside

        def init():
            global found
            root = os.environ["AZUREML_MODEL_DIR"]
            found = {"root": os.path.relpath(root), "there": sorted(os.listdir(root)),
                     "app": os.environ["AML_APP_ROOT"] == os.getcwd(), "word": beside.WORD}

        def run(data):
            return found
    """

    def look(self, *models):
        """What a script in a folder of its own finds, with a module beside it."""
        beside = {"code/beside.py": "WORD = 'found'"}
        with Worker(self.LOOK, models, "code/score.py", beside) as worker, Side(worker) as side:
            return json.loads(side.ask(b"{}")[2].decode()), side.hello["models"]

    def test_the_folder_of_one_model(self):
        found, models = self.look(("mnist", "3", {"model/saved.txt": "x"}))
        self.assertEqual(found["root"], os.path.join("azureml-models", "mnist", "3"))
        self.assertEqual((found["there"], found["app"], found["word"]), (["model"], True, "found"))
        self.assertEqual(models, [{"name": "mnist", "version": "3"}])

    def test_a_source_folder_is_found_by_its_name_as_well(self):
        script = """
            import os

            def init():
                global found
                with open("./abc/extra.txt") as stream:
                    found = [stream.read(), "RUNYARD_SOURCE_NAME" in os.environ]

            def run(data):
                return found
        """
        os.environ["RUNYARD_SOURCE_NAME"] = "abc"
        self.addCleanup(os.environ.pop, "RUNYARD_SOURCE_NAME")
        with Worker(script, files={"extra.txt": "more"}) as worker, Side(worker) as side:
            self.assertEqual(json.loads(side.ask(b"{}")[2].decode()), ["more", False])

    def test_the_folder_of_several_models(self):
        found, models = self.look(("a", "1", {"f": "x"}), ("b", "2", {"f": "x"}))
        self.assertEqual((found["root"], found["there"]), ("azureml-models", ["a", "b"]))
        self.assertEqual([one["name"] for one in models], ["a", "b"])


class StoppingTest(unittest.TestCase):
    def test_the_batch_at_hand_is_answered_first(self):
        with Worker() as worker, Side(worker) as side:
            side.send((b"", b"stop"), (b"", b"more"))
            self.assertEqual([status for status, _, _ in side.replies()], [200, 200])
            self.assertEqual(worker.process.wait(60), 0)
            self.assertFalse(os.path.exists(worker.path))

    def test_an_idle_worker_ends_at_once(self):
        with Worker() as worker, Side(worker) as side:
            worker.process.send_signal(signal.SIGTERM)
            self.assertEqual(worker.process.wait(60), 0)
            self.assertEqual(side.stream.read(), b"")

    def test_a_socket_left_by_a_killed_worker_is_replaced(self):
        with Worker() as worker:
            worker.process.kill()
            worker.process.wait()
            self.assertTrue(os.path.exists(worker.path))
            worker.start()
            while True:  # the old socket is there until the new one takes its name
                try:
                    side = Side(worker)
                    break
                except ConnectionError:
                    self.assertIsNone(worker.process.poll(), worker.said())
                    time.sleep(0.01)
            with side:
                self.assertEqual(side.ask(b"1")[0], 200)


class RawTest(unittest.TestCase):
    SCRIPT = """
        from azureml.contrib.services.aml_request import AMLRequest, rawhttp
        from azureml.contrib.services.aml_response import AMLResponse

        def init():
            pass

        @rawhttp
        def run(request):
            if request.method == "GET":
                return AMLResponse(str.encode(request.full_path), 200)
            if request.method == "PUT":
                return AMLResponse("wait", 429, {"Retry-After": 7})
            if request.get_data().startswith(b"status "):
                return AMLResponse("odd", int(request.get_data()[7:]))
            if request.args.get("as") == "json":
                return AMLResponse({"n": len(request.get_data(False))}, 201, json_str=True)
            return AMLResponse(request.get_data(False)[::-1], 200)
    """

    def test_requests_as_they_came_and_responses_as_they_go(self):
        with Worker(self.SCRIPT) as worker, Side(worker) as side:
            self.assertTrue(side.hello["headers"])
            self.assertIn("PUT", side.hello["methods"])
            found = side.ask(b"", method="GET", path="/score", query="a=1")
            self.assertEqual((found[0], found[2]), (200, b"/score?a=1"))
            found = side.ask(b"\xff\0\1", method="POST", path="/score")
            self.assertEqual((found[0], found[2]), (200, b"\1\0\xff"))
            found = side.ask(b"abc", method="POST", path="/score", query="as=json")
            self.assertEqual((found[0], found[2]), (201, b'{"n": 3}'))
            status, head, body = side.ask(b"", method="PUT", path="/score")
            self.assertEqual((status, body), (429, b"wait"))
            self.assertEqual(json.loads(head.decode())["headers"]["Retry-After"], "7")

    def test_a_status_that_http_does_not_have_is_an_error_of_the_script(self):
        with Worker(self.SCRIPT) as worker, Side(worker) as side:
            for status in ("70000", "-1", "0", "100", "600", "9" * 30):
                found, _, body = side.ask(b"status " + status.encode())
                self.assertEqual(found, 500)
                self.assertIn("200 to 599", json.loads(body.decode())["error"])
            self.assertEqual(side.ask(b"status 599")[0], 599)

    def test_a_reply_that_is_no_frame_is_a_failure_of_its_batch_alone(self):
        class Odd(object):
            def answer(self, batch):
                return [(70000, b"", b"") for _ in batch]

        with contextlib.redirect_stderr(io.StringIO()) as said:
            answer = scoring.Worker(Odd(), {}, "unused")._answer([(b"", b"")] * 2)
        self.assertEqual([one[0] for one in scoring_wire.split_replies(answer)], [500, 500])
        self.assertIn("Traceback", said.getvalue())

    def test_headers_are_the_same_in_any_case_whichever_way_they_are_set(self):
        headers = scoring_requests.Headers({"content-type": "a"})
        headers.update({"CONTENT-TYPE": "b"}, accept="c")
        self.assertEqual(headers.setdefault("content-type", "d"), "b")
        self.assertEqual(dict(headers), {"Content-Type": "b", "Accept": "c"})
        self.assertEqual(headers.copy().pop("ACCEPT"), "c")
        del headers["content-TYPE"]
        self.assertEqual(list(headers), ["Accept"])

    def test_all_values_of_repeated_fields(self):
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        request = AMLRequest("POST", "/score", "a=1&a=2", headers, b"a=3&b=4")
        self.assertEqual(request.values.getlist("a"), ["1", "2", "3"])
        self.assertEqual(dict(request.values), {"a": "1", "b": "4"})

    def test_options_of_headers_may_hold_semicolons(self):
        body = (
            b'--x;y\r\nContent-Disposition: form-data; name="f"; filename="a;b \\"c\\".txt"'
            b"\r\n\r\ndata\r\n--x;y--\r\n"
        )
        headers = {"Content-Type": 'multipart/form-data; boundary="x;y"'}
        request = AMLRequest("POST", "/score", "", headers, body)
        self.assertEqual(request.files["f"].filename, 'a;b "c".txt')
        self.assertEqual(request.files["f"].read(), b"data")

    def test_a_request_reads_like_flasks(self):
        text = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n' + (
            b'--b\r\nContent-Disposition: form-data; name="f"; filename="x.png"\r\n'
            b"Content-Type: image/png\r\n\r\n\x89\r\nPNG\r\n--b--\r\n"
        )
        kind = {"content-type": 'multipart/form-data; boundary="b"'}
        request = AMLRequest("POST", "/score", "q=2&q=3", kind, text)
        self.assertEqual(request.form["a"], "1")
        self.assertEqual(request.files["f"].read(), b"\x89\r\nPNG")
        self.assertEqual(request.files["f"].filename, "x.png")
        self.assertEqual(request.args.getlist("q"), ["2", "3"])
        self.assertEqual(request.headers["CONTENT-TYPE"], kind["content-type"])
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        self.assertEqual(AMLRequest(headers=form, body=b"a=1&b=x+y").form["b"], "x y")
        sent = AMLRequest(headers={"Content-Type": "application/json"}, body=b'{"a": 1}')
        self.assertEqual((sent.json, sent.get_data(as_text=True)), ({"a": 1}, '{"a": 1}'))

    def test_responses(self):
        self.assertEqual(AMLResponse("text", 200).get_data(), b"text")
        self.assertEqual(AMLResponse(None, 200).headers["content-type"], "application/json")
        self.assertTrue(scoring_requests.is_raw(rawhttp(lambda request: None)))
        self.assertFalse(scoring_requests.is_raw(lambda request: None))


class ReplyTest(unittest.TestCase):
    SCRIPT = """
        def init():
            pass

        def run(data, request_headers):
            if data == "text":
                return "plain"
            if data == "none":
                return None
            if data == "set":
                return {1.5}
            return {"aml_response_headers": {"X-Seen": request_headers["X-Asked"]},
                    "aml_response_body": [1, 2]}
    """

    def test_what_run_returns_is_json_with_the_headers_it_wants(self):
        with Worker(self.SCRIPT) as worker, Side(worker) as side:
            self.assertTrue(side.hello["headers"])
            status, head, body = side.ask(b"", headers={"x-asked": "yes"})
            self.assertEqual((status, body), (200, b"[1, 2]"))
            self.assertEqual(json.loads(head.decode())["headers"]["X-Seen"], "yes")
            for sent, got in ((b"text", b'"plain"'), (b"none", b"{}"), (b"set", b"[1.5]")):
                self.assertEqual(side.ask(sent)[2], got)


class BrokenTest(unittest.TestCase):
    """Set-ups that cannot be served; the last lines of the log say why."""

    def fails(self, last, script=ECHO, **more):
        worker = Worker(script, **more)
        try:
            self.assertEqual(worker.process.wait(60), 3)
            said = worker.said()
            self.assertRegex(said.strip().splitlines()[-1], last)
            self.assertNotIn("runyard_runtime/scoring.py", said)
            self.assertFalse(os.path.exists(worker.path))
            self.assertFalse(os.path.exists(os.path.join(worker.folder, "ready-0")))
            return said
        finally:
            worker.end()

    def test_init_that_raises(self):
        said = self.fails(
            "^ZeroDivisionError: ",
            "def init():\n    print('begun')\n    1 / 0\ndef run(data):\n    pass\n",
        )
        self.assertTrue(said.startswith("begun\nTraceback"))
        self.assertIn("score.py", said)

    def test_a_missing_package(self):
        self.fails("No module named 'nowhere_to_be_found'", "import nowhere_to_be_found\n")

    def test_a_mistake_of_syntax(self):
        said = self.fails("^SyntaxError: ", "def init(:\n")
        self.assertIn("def init(:", said)

    def test_a_script_without_run(self):
        self.fails("has no function run", "def init():\n    pass\n")

    def test_a_script_without_init(self):
        self.fails("has no function init", "def run(data):\n    pass\n")

    def test_run_without_a_parameter(self):
        script = "def init():\n    pass\ndef run():\n    pass\n"
        self.fails("takes no argument for the data", script)

    def test_a_script_that_is_not_there(self):
        self.fails("spec.json. Check entry_script", script=None)

    def test_a_wrong_path_of_a_model(self):
        script = """
            import os

            def init():
                open(os.path.join(os.environ["AZUREML_MODEL_DIR"], "model.pkl"))

            def run(data):
                pass
        """
        models = [("m", "1", {"other.pkl": "x"})]
        self.fails("^FileNotFoundError: .*azureml-models/m/1/model.pkl", script, models=models)

    def test_a_script_that_exits(self):
        self.fails("^SystemExit: no licence", "import sys\nsys.exit('no licence')\n")

    def test_a_scorer_that_there_is_not(self):
        self.fails("There is no scorer 'caffe'; there are: script, sklearn", scorer="caffe")

    def test_several_models_without_a_script(self):
        models = [("a", "1", {"f": "x"}), ("b", "1", {"f": "x"})]
        self.fails("one model is served, but there are 2", scorer="tensorflow", models=models)

    def test_a_folder_without_a_saved_model(self):
        models = [("a", "1", {"weights.h5": "x"})]
        last = r"no SavedModel \(saved_model.pb\); it has: weights.h5. Export it"
        self.fails(last, scorer="tensorflow", models=models)


if __name__ == "__main__":
    unittest.main()
