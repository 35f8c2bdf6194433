"""`python -m proxy` is `forebay`."""

import sys

from proxy.cli import main

sys.exit(main())
