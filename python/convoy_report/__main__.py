"""python -m convoy_report: the page and the tables."""

import sys

from . import main

sys.exit(main())
