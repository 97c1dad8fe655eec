"""azureml.data.azure_storage_datastore: one class has every kind of store here."""

from runyard.sdk.datastore import Datastore

AbstractAzureStorageDatastore = AzureBlobDatastore = AzureFileDatastore = Datastore

__all__ = ["AbstractAzureStorageDatastore", "AzureBlobDatastore", "AzureFileDatastore"]
