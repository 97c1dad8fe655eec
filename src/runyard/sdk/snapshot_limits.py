"""How large a source folder may be. v1 code changes these by assignment, so they are variables."""

SNAPSHOT_MAX_SIZE_BYTES = 300 * 1024 * 1024
SNAPSHOT_MAX_FILES = 2000
