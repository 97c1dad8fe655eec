"""azureml.contrib"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)  # other distributions may add azureml.contrib packages
