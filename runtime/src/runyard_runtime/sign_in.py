"""v1's ways to sign in, inside a job: the run's own token is the one there is."""

from runyard_runtime.job import Job


class AbstractAuthentication(object):
    """A way to sign in; takes what v1's took and keeps none of it."""

    def __init__(self, *args, **kwargs):
        pass

    def get_authentication_header(self):
        """The header that requests to the server carry."""
        return {"Authorization": "Bearer %s" % Job.here().api.token}


class ArcTokenAuthentication(AbstractAuthentication):
    """Signing in with one given token; not needed here."""


class AzureCliAuthentication(AbstractAuthentication):
    """Signing in with Azure's command line; not needed here."""


class AzureMLTokenAuthentication(AbstractAuthentication):
    """Signing in as a run; not needed here."""


class InteractiveLoginAuthentication(AbstractAuthentication):
    """Signing in through a browser; not needed here."""


class MsiAuthentication(AbstractAuthentication):
    """Signing in as a machine; not needed here."""


class ServicePrincipalAuthentication(AbstractAuthentication):
    """Signing in as a service; not needed here."""


class TokenAuthentication(AbstractAuthentication):
    """Signing in with tokens of one's own; not needed here."""
