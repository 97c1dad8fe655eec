"""azureml.contrib.services"""
