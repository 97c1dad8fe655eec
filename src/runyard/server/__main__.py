"""`python -m runyard.server`."""

import sys

from runyard.server.main import main

if __name__ == "__main__":
    sys.exit(main())
