"""azureml.data.abstract_datastore"""

from runyard.sdk.datastore import Datastore as AbstractDatastore

__all__ = ["AbstractDatastore"]
