"""From a PyTorch or Keras model to ONNX to a web service: `deploy.py pytorch` or `deploy.py keras`.

Run `runyard init` in your folder first. Running this again trains anew and updates the service.
"""

import json
import sys
from pathlib import Path

from azureml.core import Environment, Experiment, Model, ScriptRunConfig, Workspace

HERE = Path(__file__).parent

which = sys.argv[1] if len(sys.argv) > 1 else "pytorch"
if which not in ("pytorch", "keras"):
    sys.exit(f"{which} is not an example; choose pytorch or keras.")
ws = Workspace.from_config()

env = Environment.from_conda_specification(f"onnx-{which}", str(HERE / f"{which}.yml"))
env.python.conda_dependencies.set_python_version(f"3.{sys.version_info.minor}")
env.environment_variables = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}

run = Experiment(ws, "onnx").submit(
    ScriptRunConfig(source_directory=str(HERE / "src"), script=f"train_{which}.py", environment=env)
)
run.wait_for_completion(show_output=True)

model = run.register_model(
    f"digits-{which}",
    "outputs/digits.onnx",
    model_framework=Model.Framework.ONNX,
    model_framework_version="1.23",
)
service = Model.deploy(ws, f"onnx-{which}", [model], overwrite=True)
service.wait_for_deployment(show_output=True)

run.download_file("outputs/unseen.json", "unseen.json")
unseen = json.loads(Path("unseen.json").read_text())
(scores,) = service.run({"data": unseen["images"]}).values()  # one list for each output
found = [row.index(max(row)) for row in scores]
print("images of      ", *unseen["labels"])
print("the service says", *found)
print(f"\nThe service is at {service.scoring_uri}, the same file at every framework's format:")
print(f"  {service.scoring_uri.replace('/score', '')}/v2/models/{model.name}")
print(f"It goes on until you end it: runyard service rm {service.name}")
