"""The entry script: `init` is called once, `run` for every request.

The decorators of inference-schema turn the body's "flowers" into an array, refuse what does not
fit with a 400 that shows the example, and put both into the service's /swagger.json.
"""

import joblib
import numpy as np
from inference_schema.parameter_types.numpy_parameter_type import NumpyParameterType
from inference_schema.parameter_types.standard_py_parameter_type import StandardPythonParameterType
from inference_schema.schema_decorators import input_schema, output_schema

from azureml.core.model import Model


def init():
    """Load the model, before the first request."""
    global model
    model = joblib.load(Model.get_model_path("iris"))


@input_schema("flowers", NumpyParameterType(np.array([[5.1, 3.5, 1.4, 0.2]])))
@output_schema(StandardPythonParameterType([{"kind": "setosa", "sure": 0.98}]))
def run(flowers):
    """The kind of each flower, and how sure the model is."""
    chances = model.predict_proba(flowers)
    return [
        {"kind": str(model.classes_[row.argmax()]), "sure": round(float(row.max()), 3)}
        for row in chances
    ]
