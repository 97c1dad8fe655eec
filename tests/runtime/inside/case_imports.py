# mypy: ignore-errors
"""What scripts import inside a job, and what they are told about the rest."""

import contextlib
import importlib
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import unittest

import azureml
import azureml.core
import azureml.exceptions
from azureml.core import Experiment, Run, Workspace
from azureml.core.run import _OfflineRun, _SubmittedRun, get_run
from azureml.telemetry import set_diagnostics_collection
from runyard_runtime import missing
from runyard_runtime.run import Run as TheRun

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(azureml.__file__)))


class ImportTest(unittest.TestCase):
    def test_the_paths_scripts_use_lead_to_the_same_classes(self):
        for module, name, expected in [
            ("azureml.core.run", "Run", Run),
            ("azureml.core.workspace", "Workspace", Workspace),
            ("azureml.core.experiment", "Experiment", Experiment),
            ("azureml.core", "Run", TheRun),
        ]:
            self.assertIs(getattr(importlib.import_module(module), name), expected)
        self.assertTrue(issubclass(_SubmittedRun, Run))
        self.assertTrue(callable(get_run))
        self.assertEqual(azureml.core.VERSION, azureml.core.__version__)
        self.assertIsNone(set_diagnostics_collection(send_diagnostics=True))

    def test_every_exception_is_there_and_has_a_message(self):
        for name in azureml.exceptions.__all__:
            error = getattr(azureml.exceptions, name)("what happened")
            self.assertEqual((error.message, str(error)), ("what happened",) * 2)
            self.assertIsInstance(error, azureml.exceptions.AzureMLException)
        self.assertEqual(len(azureml.exceptions.__all__), 19)

    def test_urllib_request_is_loaded(self):
        code = "import urllib, azureml.core; urllib.request.urlretrieve"
        subprocess.check_call([sys.executable, "-c", code])

    def test_what_had_a_package_of_its_own_fails_at_import_with_what_to_do(self):
        for name in missing.ABSENT:
            if missing.is_importable(name):
                continue
            parent, _, last = name.rpartition(".")
            for statement in ("import %s" % name, "from %s import %s" % (parent, last)):
                with self.assertRaisesRegex(ImportError, "A job has no %s" % name) as caught:
                    exec(statement, {})
                self.assertRegex(str(caught.exception), "why: .*\n  fix: ")

    def test_what_azureml_core_had_can_be_imported_and_explains_itself_when_it_is_used(self):
        for name in missing.ABSENT:
            if not missing.is_importable(name):
                continue
            parent, _, last = name.rpartition(".")
            space = {}
            exec("from %s import %s as thing" % (parent, last), space)
            thing = space["thing"].Some if last.islower() else space["thing"]
            self.assertIsInstance(thing, type)  # for isinstance() and type hints
            for use in (thing, lambda thing=thing: thing.get):
                with self.assertRaisesRegex(Exception, "A job has no %s" % name) as caught:
                    use()
                self.assertRegex(str(caught.exception), "why: .*\n  fix: ")
            with self.assertRaises(azureml.exceptions.UserErrorException):
                thing("x", y=1)

    def test_modules_that_are_not_here_have_their_parts_and_the_exceptions_they_raise(self):
        space = {}
        exec("from azureml.core.compute.amlcompute import AmlCompute", space)
        exec("import azureml.core.runconfig as runconfig", space)
        exec("from azureml.core.compute_target import ComputeTargetException", space)
        exec("from azureml.core.run import Run, RunEnvironmentException", space)
        self.assertEqual(space["AmlCompute"].__name__, "AmlCompute")
        self.assertFalse(hasattr(space["AmlCompute"], "create"))
        self.assertFalse(hasattr(space["runconfig"], "__file__"))
        self.assertIs(space["ComputeTargetException"], azureml.exceptions.ComputeTargetException)

    def test_the_first_name_of_get_context_is_there(self):
        self.assertIsInstance(Run.get_submitted_run(), _OfflineRun)

    def test_a_job_is_signed_in_whatever_a_script_signs_in_with(self):
        exec(
            "from azureml.core.authentication import *\n"
            "ServicePrincipalAuthentication(tenant_id='t', service_principal_id='i',"
            " service_principal_password='p')\nMsiAuthentication()",
            {},
        )

    def test_names_below_the_table_are_explained_too(self):
        with self.assertRaisesRegex(ImportError, "A job has no azureml.train, which"):
            importlib.import_module("azureml.train.dnn")
        with self.assertRaisesRegex(ImportError, "A job has no azureml.pipeline, which"):
            exec("from azureml.pipeline.core import Pipeline", {})
        with self.assertRaisesRegex(ImportError, "azureml._history, which v1 kept private"):
            importlib.import_module("azureml._history.utils")
        error = importlib.import_module("azureml._common.exceptions").AzureMLException
        self.assertIs(error, azureml.exceptions.AzureMLException)

    def test_an_attribute_that_is_not_there_is_an_attribute_error(self):
        self.assertFalse(hasattr(azureml, "train"))
        with self.assertRaisesRegex(AttributeError, "A job has no azureml.core.Webservice"):
            azureml.core.Webservice.deploy
        with self.assertRaisesRegex(AttributeError, "Did you mean 'Workspace'"):
            azureml.core.Workspaces

    def test_a_misspelt_import_names_the_nearest(self):
        for statement, near in [
            ("from azureml.core import Experimnt", "Experiment"),
            ("from azureml.core.run import Runn", "Run"),
            ("from azureml.exceptions import ServiceExeption", "ServiceException"),
            ("import azureml.cor", "core"),
        ]:
            with self.assertRaisesRegex(ImportError, "Did you mean '%s'" % near):
                exec(statement, {})

    def test_libraries_that_look_for_azureml_find_it(self):
        for name in ("azureml", "azureml.core", "azureml.core.run"):
            self.assertIsNotNone(importlib.util.find_spec(name))

    def test_only_two_packages_become_importable(self):
        self.assertEqual(sorted(os.listdir(ROOT)), ["azureml", "runyard_runtime"])

    def test_users_parts_of_azureml_stay_importable_and_clients_do_not_mix_in(self):
        with tempfile.TemporaryDirectory() as folder:
            write(folder, "theirs/azureml/contrib/__init__.py", "")
            write(folder, "theirs/azureml/contrib/notebook.py", "VALUE = 1")
            write(folder, "theirs/azureml/core/__init__.py", "VALUE = 'never seen'")
            write(folder, "theirs/azureml/widgets.py", "VALUE = 2")
            write(folder, "client/azureml/__init__.py", "")
            write(folder, "client/azureml/core/__init__.py", "from runyard import Run")
            write(folder, "client/azureml/train.py", "")
            code = (
                "import azureml.contrib.notebook, azureml.core, azureml.widgets\n"
                "assert (azureml.contrib.notebook.VALUE, azureml.widgets.VALUE) == (1, 2)\n"
                "import azureml.contrib.services.aml_request\n"
                "azureml.core.Run.get_context\n"
                "try:\n    import azureml.train\n"
                "except ImportError as error:\n    assert 'A job has no' in str(error)\n"
                "else:\n    raise AssertionError('the client was mixed in')\n"
            )
            paths = [ROOT, os.path.join(folder, "theirs"), os.path.join(folder, "client")]
            environment = dict(os.environ, PYTHONPATH=os.pathsep.join(paths))
            subprocess.check_call([sys.executable, "-W", "error", "-c", code], env=environment)


def write(folder, name, content):
    path = os.path.join(folder, *name.split("/"))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as stream:
        stream.write(content)


class OfflineTest(unittest.TestCase):
    def setUp(self):
        self.run_ = Run.get_context()

    def test_outside_a_job_there_is_a_stand_in(self):
        self.assertIs(type(self.run_), _OfflineRun)
        self.assertTrue(self.run_.id.startswith("OfflineRun_"))
        self.assertNotEqual(self.run_.id, Run.get_context().id)
        for name in ("experiment", "parent", "input_datasets"):
            self.assertFalse(hasattr(self.run_, name))
        with self.assertRaisesRegex(AttributeError, "does not belong to a job"):
            self.run_.experiment

    def test_unless_that_is_not_wanted(self):
        error = azureml.exceptions.RunEnvironmentException
        with self.assertRaisesRegex(error, "AZUREML_RUN_ID and RUNYARD_JOB_DIR is not set"):
            Run.get_context(allow_offline=False)
        with self.assertRaises(error):
            Workspace.from_config()

    def test_it_prints_what_it_would_log(self):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            self.run_.log("accuracy", 0.5)
            self.run_.log_list("l", iter([1]))
            self.run_.log_row("r", x=1)
            self.run_.upload_file("model.pkl", "outputs/model.pkl")
        lines = printed.getvalue().splitlines()
        self.assertEqual(lines[:2], ["Attempted to log scalar metric accuracy:", "0.5"])
        self.assertEqual(lines[-1], "Attempted to track file model.pkl at outputs/model.pkl")

    def test_it_has_the_calls_of_a_run(self):
        public = {name for name in vars(_OfflineRun) if not name.startswith("_")}
        for name in public:
            self.assertTrue(hasattr(Run, name), name)
        logs = {name for name in dir(Run) if name.startswith(("log", "upload", "tag", "get_tag"))}
        self.assertEqual(logs - public - {"tags"}, set())
        with self.run_ as run, run.child_run() as child:
            child.tag("a", 1)
            self.assertEqual(child.get_tags(), {"a": 1})
        self.assertEqual(len(self.run_.create_children(tag_key="x", tag_values=[1, 2])), 2)


if __name__ == "__main__":
    unittest.main()
