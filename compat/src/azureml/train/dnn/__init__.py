"""azureml.train.dnn"""

from runyard.sdk.estimators_distribution import Gloo, Mpi, Nccl, ParameterServer
from runyard.sdk.estimators_frameworks import Chainer, PyTorch, TensorFlow

__all__ = ["Chainer", "Gloo", "Mpi", "Nccl", "ParameterServer", "PyTorch", "TensorFlow"]
