"""azureml.data.azure_data_lake_datastore: one class has every kind of store here."""

from runyard.sdk.datastore import Datastore

AbstractADLSDatastore = AzureDataLakeDatastore = AzureDataLakeGen2Datastore = Datastore

__all__ = ["AbstractADLSDatastore", "AzureDataLakeDatastore", "AzureDataLakeGen2Datastore"]
