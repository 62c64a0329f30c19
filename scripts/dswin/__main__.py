"""``python -m dswin``."""

import os
import sys

from .cli import main

code = main()
sys.stdout.flush()
sys.stderr.flush()
# py-rattler can crash while the interpreter ends, after the work is done.
os._exit(code)
