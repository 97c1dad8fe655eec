"""v1's switch for sending diagnostics. Runyard sends none."""


def set_diagnostics_collection(
    send_diagnostics: bool = True,
    verbosity: int | None = None,
    reason: str = "",
    path: str | None = None,
) -> None:
    """Accepted and without effect: nothing is ever sent."""
