"""python -m convoy: the convoy command."""

import sys

from .command import main

sys.exit(main())
