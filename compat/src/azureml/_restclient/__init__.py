"""azureml._restclient"""
