"""Our side of deployments: the v1 SDK against the server of RUNYARD_HOME, warm."""

import time
from pathlib import Path

from lines import serve

from azureml.core import Environment, Experiment, Model, ScriptRunConfig, Webservice, Workspace
from azureml.core.conda_dependencies import CondaDependencies
from azureml.core.model import InferenceConfig
from azureml.core.webservice import LocalWebservice
from azureml.exceptions import WebserviceException

FRAMEWORKS = {
    "sklearn": Model.Framework.SCIKITLEARN,
    "onnx": Model.Framework.ONNX,
    "tensorflow": Model.Framework.TENSORFLOW,
}


class Deployments:
    """The workspace that everything happens in."""

    def __init__(self):
        self.workspace = Workspace.from_config()

    def register(self, name, python, path, kind):
        """Register a file or folder as the output of a run in that interpreter's environment."""
        source = Path("source")
        source.mkdir(exist_ok=True)
        (source / "keep.py").write_text(
            "import os, shutil, sys\n"
            "copy = shutil.copytree if os.path.isdir(sys.argv[1]) else shutil.copy\n"
            "copy(sys.argv[1], os.path.join('outputs', os.path.basename(sys.argv[1])))\n"
        )
        run = Experiment(self.workspace, "models").submit(
            ScriptRunConfig(
                str(source), script="keep.py", arguments=[path], environment=_as_it_is(python)
            )
        )
        run.wait_for_completion()
        run.register_model(name, f"outputs/{Path(path).name}", model_framework=FRAMEWORKS.get(kind))

    def deploy_and_ask(self, model, body):
        """Seconds from the deploy call to the first answer in the caller's hands."""
        found = Model(self.workspace, model)
        begun = time.perf_counter()
        service = Model.deploy(self.workspace, "timed", [found])
        service.wait_for_deployment()
        service.run(body)
        seconds = time.perf_counter() - begun
        service.delete()
        return seconds

    def fail(self, script, model, python, packages, port):
        """Deploy what cannot work: seconds until the caller knows, and what it is told."""
        begun = time.perf_counter()
        try:
            models = [Model(self.workspace, model)] if model else []
            config = self._config(script, python, packages)
            local = LocalWebservice.deploy_configuration(port=port) if port else None
            Model.deploy(self.workspace, "broken", models, config, local).wait_for_deployment()
            said = "it was deployed"
        except WebserviceException as error:
            said = str(error)
        seconds = time.perf_counter() - begun
        if "broken" in self.workspace.webservices:
            Webservice(self.workspace, "broken").delete()
        return [seconds, said]

    def _config(self, script, python, packages):
        if script is None:
            return None
        Path("broken.py").write_text(script)
        environment = _as_it_is(python)
        if packages:
            environment = Environment("impossible")
            environment.python.conda_dependencies = CondaDependencies.create(pip_packages=packages)
        return InferenceConfig("broken.py", environment=environment)

    def echo(self, script, python):
        """Deploy an echo, or its next version: what is known of it."""
        Path("echo.py").write_text(script)
        config = InferenceConfig("echo.py", environment=_as_it_is(python))
        service = Model.deploy(self.workspace, "echo", [], config, overwrite=True)
        service.wait_for_deployment()
        record = service._record
        return {"uri": service.scoring_uri, "uid": record.uid, "front": record.front}

    def delete(self, name):
        """End a service."""
        Webservice(self.workspace, name).delete()
        return name


def _as_it_is(python):
    environment = Environment("as-it-is")
    environment.python.user_managed_dependencies = True
    environment.python.interpreter_path = python
    return environment


if __name__ == "__main__":
    ours = Deployments()
    serve(**{name: getattr(ours, name) for name in vars(Deployments) if not name.startswith("_")})
