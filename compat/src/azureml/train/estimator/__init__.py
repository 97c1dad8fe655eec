"""azureml.train.estimator"""

from runyard.sdk.estimators import Estimator, MMLBaseEstimator
from runyard.sdk.estimators_distribution import Gloo, Mpi, Nccl, ParameterServer

__all__ = ["Estimator", "Gloo", "MMLBaseEstimator", "Mpi", "Nccl", "ParameterServer"]
