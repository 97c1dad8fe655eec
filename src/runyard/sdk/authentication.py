"""v1's ways to sign in. A server of Runyard knows one: its token, found by itself.

The classes take what v1's took and keep none of it.
"""

from runyard.sdk.session import open_session


def _header() -> dict[str, str]:
    return {"Authorization": f"Bearer {open_session().client.token}"}


class InteractiveLoginAuthentication:
    """Signing in through a browser; not needed here."""

    def __init__(
        self, force: bool = False, tenant_id: str | None = None, cloud: str | None = None
    ) -> None:
        pass

    def get_authentication_header(self) -> dict[str, str]:
        """The header that requests to the server carry."""
        return _header()


class ServicePrincipalAuthentication:
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

    def get_authentication_header(self) -> dict[str, str]:
        """The header that requests to the server carry."""
        return _header()


class MsiAuthentication:
    """Signing in as a machine; not needed here."""

    def __init__(self, identity_config: object | None = None, cloud: str | None = None) -> None:
        pass

    def get_authentication_header(self) -> dict[str, str]:
        """The header that requests to the server carry."""
        return _header()


class AzureCliAuthentication:
    """Signing in with Azure's command line; not needed here."""

    def __init__(self, cloud: str | None = None) -> None:
        pass

    def get_authentication_header(self) -> dict[str, str]:
        """The header that requests to the server carry."""
        return _header()
