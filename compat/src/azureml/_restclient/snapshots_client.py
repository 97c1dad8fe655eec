"""azureml._restclient.snapshots_client: the limits, which v1 code changes by assignment."""

import sys

from runyard.sdk import snapshot_limits

sys.modules[__name__] = snapshot_limits  # the same module, so that an assignment is seen
