"""azureml.core.webservice"""

from runyard.sdk.lazy import lazy_names
from runyard.sdk.webservice import Webservice
from runyard.sdk.webservice_kinds import AciWebservice, AksWebservice, LocalWebservice

__all__ = ["AciWebservice", "AksWebservice", "LocalWebservice", "Webservice"]

__getattr__ = lazy_names(__name__, {})
