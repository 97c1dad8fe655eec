"""v1's ways to sign in. A server of Runyard knows one: its token, found by itself.

The classes take what v1's took and keep none of it.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from runyard.sdk.session import open_session

_TOKEN_SECONDS = 3600  # what Azure grants; ours does not run out


class AbstractAuthentication:
    """What every way to sign in has."""

    def get_authentication_header(self) -> dict[str, str]:
        """The header that requests to the server carry."""
        return {"Authorization": f"Bearer {self.get_token().token}"}

    def get_token(self, *scopes: object, **kwargs: object) -> "AccessToken":
        """The token of the server, in the form that Azure's libraries pass around."""
        return AccessToken(open_session().client.token or "", int(time.time()) + _TOKEN_SECONDS)


class AccessToken(NamedTuple):
    """A token, and when it runs out."""

    token: str
    expires_on: int


class InteractiveLoginAuthentication(AbstractAuthentication):
    """Signing in through a browser; not needed here."""

    def __init__(
        self, force: bool = False, tenant_id: str | None = None, cloud: str | None = None
    ) -> None:
        pass


class ServicePrincipalAuthentication(AbstractAuthentication):
    """Signing in as a service; not needed here."""

    def __init__(
        self,
        tenant_id: str,
        service_principal_id: str,
        service_principal_password: str,
        cloud: str = "AzureCloud",
        _enable_caching: bool = True,
    ) -> None:
        pass


class MsiAuthentication(AbstractAuthentication):
    """Signing in as a machine; not needed here."""

    def __init__(self, identity_config: object | None = None, cloud: str | None = None) -> None:
        pass


class AzureCliAuthentication(AbstractAuthentication):
    """Signing in with Azure's command line; not needed here."""

    def __init__(self, cloud: str | None = None) -> None:
        pass


class TokenAuthentication(AbstractAuthentication):
    """Signing in with tokens of one's own; not needed here."""

    def __init__(
        self,
        get_token_for_audience: Callable[[str], str],
        cloud: str = "AzureCloud",
        fetch_token_metadata: object | None = None,
    ) -> None:
        pass


class ArcTokenAuthentication(AbstractAuthentication):
    """Signing in with one given token; not needed here."""

    def __init__(self, arm_access_token: str) -> None:
        pass


class AzureMLTokenAuthentication(AbstractAuthentication):
    """Signing in as a run; not needed here."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass
