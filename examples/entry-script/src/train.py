"""Train a classifier of irises. What lies under ./outputs in the end belongs to the run."""

import os

import joblib
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from azureml.core import Run

flowers = load_iris()
train_x, test_x, train_y, test_y = train_test_split(
    flowers.data, flowers.target_names[flowers.target], test_size=0.2, random_state=7
)
model = make_pipeline(StandardScaler(), LogisticRegression()).fit(train_x, train_y)
accuracy = model.score(test_x, test_y)
Run.get_context().log("accuracy", accuracy)
print(f"accuracy on flowers it has never seen: {accuracy:.3f}")
os.makedirs("outputs", exist_ok=True)
joblib.dump(model, "outputs/iris.joblib")
