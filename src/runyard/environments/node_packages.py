"""Where nodes that make an environment again find its packages."""

import os
from collections.abc import Mapping

import msgspec

from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import RunyardError
from runyard.environments.pip_configuration import (
    load_pip_configuration,
    merge_options,
    network_variables,
)
from runyard.planning.environments import IndexOptions, PackageSource, plan_venv


def find_packages(spec: EnvironmentSpec, environ: Mapping[str, str] = os.environ) -> PackageSource:
    """What pip is told on this machine and by the spec; a node leaves out what it does not have."""
    configuration = load_pip_configuration(environ)
    try:
        asked = plan_venv(msgspec.structs.replace(spec, conda=())).options
    except RunyardError:
        asked = IndexOptions()  # it was built all the same, by a builder of another kind
    options = merge_options(configuration.options, asked)
    # Certificates are files of this machine: the nodes have their own.
    told = msgspec.structs.replace(configuration, cert="")
    return PackageSource(options=options, variables=network_variables(told, (), environ))
