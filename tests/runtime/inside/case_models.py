# mypy: ignore-errors
"""Models inside a job and inside a service."""

import contextlib
import io
import os
import shutil
import tempfile
import unittest

from azureml.core import Dataset, Model, Run, Workspace
from azureml.core.model import Model as SameModel
from azureml.core.resource_configuration import ResourceConfiguration
from azureml.exceptions import (
    ModelNotFoundException,
    ModelPathNotFoundException,
    UserErrorException,
    WebserviceException,
)
from fake_server import RUN, FakeJob, working_directory
from runyard_runtime import model_paths


def write(path, text="text"):
    folder = os.path.dirname(path)
    if folder:
        os.makedirs(folder, exist_ok=True)
    with open(path, "w") as stream:
        stream.write(text)


def read(path):
    with open(path) as stream:
        return stream.read()


class FolderTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        place = working_directory(self.folder)
        place.__enter__()
        self.addCleanup(place.__exit__, None, None, None)


class JobTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.job = FakeJob()
        self.addCleanup(self.job.close)
        self.server = self.job.server
        self.run_ = Run.get_context()
        self.ws = Workspace()

    def register(self, name="m", **more):
        write("x.pkl", name)
        with contextlib.redirect_stdout(io.StringIO()):
            return Model.register(self.ws, "x.pkl", name, **more)

    def test_what_lies_in_outputs_is_kept_and_registered(self):
        write("outputs/model/a", "A")
        write("outputs/model/deep/b", "B")
        model = self.run_.register_model(
            "net",
            "./outputs/model",
            tags={"t": 1, "none": None},
            properties={"p": None},
            model_framework=Model.Framework.TENSORFLOW,
            model_framework_version=2.2,
            resource_configuration=ResourceConfiguration(1, 0.5),
        )
        self.assertEqual((model.id, model.run_id, model.version), ("net:1", RUN, 1))
        self.assertEqual(model.tags, {"t": "1", "none": None})
        self.assertEqual(model.properties, {"p": "None"})
        self.assertEqual(model.model_framework_version, "2.2")
        kept = self.server.models[0]
        self.assertEqual(kept["resources"], {"cpu": 1, "memory_gb": 0.5, "gpu": None})
        self.assertEqual([row[0] for row in kept["manifest"]], ["model/a", "model/deep/b"])
        self.assertIn("outputs/model/deep/b", self.server.files[RUN])

    def test_one_file_and_a_file_that_was_uploaded_by_hand(self):
        write("outputs/net.pt", "1")
        self.assertEqual(self.run_.register_model("a", "outputs/net.pt").id, "a:1")
        write("elsewhere", "2")
        self.run_.upload_file("b", "elsewhere")
        self.assertEqual(self.run_.register_model("b").id, "b:1")
        self.assertEqual(self.server.models[1]["path"], "b")

    def test_nothing_at_that_path_is_v1s_error(self):
        for path in ("outputs/none", ".", None):
            with self.assertRaisesRegex(ModelPathNotFoundException, "It has: x"):
                self.run_.register_model("nothing", path)
        with self.assertRaisesRegex(WebserviceException, "No spaces"):
            self.register("a b")

    def test_local_files_become_a_model_with_the_run_they_come_from(self):
        write("net/a")
        write("net/deep/b")
        write("net/deep/c")
        with contextlib.redirect_stdout(io.StringIO()) as said:
            model = Model.register(self.ws, "net", "local", child_paths=["deep", "a"])
        self.assertEqual(said.getvalue(), "Registering model local\n")
        names = [row[0] for row in model._record["manifest"]]
        self.assertEqual(names, ["net/a", "net/deep/b", "net/deep/c"])
        self.assertEqual(model.run_id, RUN)
        with self.assertRaisesRegex(ModelPathNotFoundException, "no file or folder 'gone'"):
            Model.register(self.ws, "gone", "local")
        for child in ("../outside", "/etc/hosts"):
            with self.assertRaisesRegex(WebserviceException, "leads out of the folder 'net'"):
                Model.register(self.ws, "net", "local", child_paths=[child])

    def test_datasets_without_a_name_get_an_id(self):
        dataset = Dataset.File.from_files("http://x/y")
        self.register(datasets=[("training", dataset)], sample_input_dataset=dataset)
        self.assertEqual(
            self.server.models[0]["datasets"], [{"purpose": "training", "dataset": "dataset-1"}]
        )
        self.assertEqual(self.server.models[0]["sample_input"], "dataset-1")

    def test_a_lost_answer_makes_one_model(self):
        write("outputs/m")
        self.run_.upload_file("outputs/m", "outputs/m")
        os.unlink("outputs/m")
        self.server.forget_answers = 1
        self.assertEqual(self.run_.register_model("m", "outputs/m").id, "m:1")
        self.assertEqual(len(self.server.models), 1)

    def test_models_are_found_and_listed(self):
        for stage in ("old", "new", "new"):
            self.register(tags={"stage": stage})
        self.register("other")
        self.assertEqual(Model(self.ws, "m").version, 3)
        self.assertEqual(Model(self.ws, "m", version=1).version, 1)
        self.assertEqual(Model(self.ws, id="m:2").version, 2)
        listed = [one.version for one in Model.list(self.ws, "m")]
        self.assertEqual(listed, [3, 2, 1])  # over several pages
        found = Model.list(self.ws, tags=["stage", ["stage", "old"]])
        self.assertEqual([one.id for one in found], ["m:1"])
        self.assertEqual(sorted(self.ws.models), ["m", "other"])
        self.assertEqual(self.ws.models["m"].version, 3)
        for error in (ModelNotFoundException, WebserviceException):
            with self.assertRaisesRegex(error, "ModelNotFound.*\n.*has: m, other"):
                Model(self.ws, "never")
        with self.assertRaisesRegex(ModelNotFoundException, "versions: 3, 2, 1"):
            Model(self.ws, "m", version=9)
        for call in (lambda: Model(self.ws), lambda: Model(self.ws, "m", version="x")):
            with self.assertRaises(WebserviceException):
                call()
        with self.assertRaises(UserErrorException):
            Model.list(self.ws, tags="stage")

    def test_labels_change_and_properties_stay(self):
        model = self.register(properties={"p": "1"})
        model.add_tags({"a": 1})
        model.add_properties({"q": 2})
        self.assertEqual((model.tags, model.properties), ({"a": "1"}, {"p": "1", "q": "2"}))
        with self.assertRaisesRegex(WebserviceException, "property 'p' already"):
            model.add_properties({"p": "1"})
        with self.assertRaisesRegex(WebserviceException, "runyard model rm m:1"):
            model.delete()
        self.assertEqual(model.serialize()["id"], "m:1")

    def test_the_path_of_a_model_is_fetched_once(self):
        self.register()
        os.unlink("x.pkl")
        path = Model.get_model_path("m")
        self.assertEqual(path, os.path.join("azureml-models", "m", "1", "x.pkl"))
        self.assertEqual(read(path), "m")
        before = len([one for one in self.server.requests if one.startswith("GET /api/v1/blobs/")])
        self.assertEqual(SameModel.get_model_path("m", version=1), path)
        self.assertEqual(Model.get_model_path("m"), path)
        after = len([one for one in self.server.requests if one.startswith("GET /api/v1/blobs/")])
        self.assertEqual((before, after), (1, 1))
        write(path, "damaged")
        self.assertEqual(read(Model.get_model_path("m")), "m")
        self.register()
        self.assertEqual(Model.get_model_path("m").split(os.sep)[2], "2")
        with self.assertRaisesRegex(ModelNotFoundException, "no model 'never'"):
            Model.get_model_path("never")

    def test_a_download_replaces_only_when_told_to(self):
        model = self.register()
        self.assertEqual(model.download("here"), os.path.join("here", "x.pkl"))
        with self.assertRaisesRegex(WebserviceException, "exist_ok=True"):
            model.download("here")
        write("here/x.pkl", "changed")
        model.download("here", exist_ok=True)
        self.assertEqual(read("here/x.pkl"), "m")


class ServiceTest(FolderTest):
    """Where there is no job: in a service, or when a script is tried by hand."""

    def test_one_model_and_several_are_found_below_the_services_folder(self):
        root = os.path.join(self.folder, "r1", "azureml-models")
        write(os.path.join(root, "net", "2", "model", "a"))
        write(os.path.join(root, "other", "1", "x.pkl"))
        for place in (root, root + os.sep, os.path.join(root, "net", "2")):
            self.addCleanup(os.environ.pop, model_paths.VARIABLE, None)
            os.environ[model_paths.VARIABLE] = place
            self.assertEqual(Model.get_model_path("net"), os.path.join(root, "net", "2", "model"))
            self.assertEqual(
                Model.get_model_path("other", version=1), os.path.join(root, "other", "1", "x.pkl")
            )
            with self.assertRaisesRegex(ModelNotFoundException, "There are versions 2"):
                Model.get_model_path("net", version=3)

    def test_in_a_service_the_registry_is_not_asked(self):
        job = FakeJob()
        self.addCleanup(job.close)
        root = os.path.join(self.folder, "azureml-models")
        write(os.path.join(root, "net", "1", "x"))
        self.addCleanup(os.environ.pop, model_paths.VARIABLE, None)
        os.environ[model_paths.VARIABLE] = os.path.join(root, "net", "1")
        self.assertEqual(Model.get_model_path("net"), os.path.join(root, "net", "1", "x"))
        with self.assertRaisesRegex(ModelNotFoundException, "Deploy the service with this model"):
            Model.get_model_path("other")
        self.assertEqual(job.server.requests, [])

    def test_the_newest_version_that_is_here_then_a_file_of_that_name(self):
        for version in ("9", "10", "notes"):
            write(os.path.join("azureml-models", "m", version, "x"))
        self.assertEqual(Model.get_model_path("m"), os.path.join("azureml-models", "m", "10", "x"))
        write("plain.pkl")
        self.assertEqual(Model.get_model_path("plain.pkl"), "plain.pkl")
        with self.assertRaisesRegex(ModelNotFoundException, "nowhere.* is not here"):
            Model.get_model_path("nowhere")
        write(os.path.join("azureml-models", "m", "10", "y"))
        with self.assertRaisesRegex(WebserviceException, "should hold one file or folder"):
            Model.get_model_path("m")


if __name__ == "__main__":
    unittest.main()
