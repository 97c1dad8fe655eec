"""azureml._common: private in v1, and imported all the same."""
