"""azureml.train.sklearn"""

from runyard.sdk.estimators_frameworks import SKLearn

__all__ = ["SKLearn"]
