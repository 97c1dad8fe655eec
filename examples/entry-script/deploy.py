"""Train a scikit-learn model, deploy it with an entry script of your own, and ask it.

Run `runyard init` in your folder first. Running this again trains anew and updates the service.
"""

import sys
from pathlib import Path

from azureml.core import Environment, Experiment, Model, ScriptRunConfig, Workspace
from azureml.core.model import InferenceConfig
from azureml.core.webservice import AciWebservice
from azureml.exceptions import WebserviceException

HERE = Path(__file__).parent

ws = Workspace.from_config()

# One environment for both: the model is served with the versions that it was trained with.
env = Environment.from_conda_specification("entry-script", str(HERE / "conda_dependencies.yml"))
env.python.conda_dependencies.set_python_version(f"3.{sys.version_info.minor}")

run = Experiment(ws, "irises").submit(
    ScriptRunConfig(source_directory=str(HERE / "src"), script="train.py", environment=env)
)
run.wait_for_completion(show_output=True)
model = run.register_model("iris", "outputs/iris.joblib")

service = Model.deploy(
    ws,
    "irises",
    [model],
    InferenceConfig("score.py", source_directory=str(HERE / "src"), environment=env),
    AciWebservice.deploy_configuration(cpu_cores=1, auth_enabled=True),
    overwrite=True,
)
service.wait_for_deployment(show_output=True)

flowers = [[5.1, 3.5, 1.4, 0.2], [5.9, 3.0, 4.2, 1.5], [6.7, 3.0, 5.2, 2.3]]
for flower, answer in zip(flowers, service.run({"flowers": flowers}), strict=True):
    print(f"{flower} is {answer['kind']}, {answer['sure']:.0%} sure")
try:
    service.run({"flowers": [["long", "wide"]]})
except WebserviceException as error:
    print("\nWhat a wrong request is told:", error.message.partition("Content: ")[2])

print(f"\nThe service is at {service.scoring_uri}, and describes itself at {service.swagger_uri}.")
print(f"Callers send the key: curl -H 'Authorization: Bearer {service.get_keys()[0]}' \\")
print(f"""  -d '{{"flowers": [[5.1, 3.5, 1.4, 0.2]]}}' {service.scoring_uri}""")
print("It goes on until you end it: runyard service rm irises")
