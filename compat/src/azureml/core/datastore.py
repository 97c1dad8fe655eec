"""azureml.core.datastore"""

from runyard.sdk.datastore import Datastore as Datastore
