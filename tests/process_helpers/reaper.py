"""Look for the marked processes of a dead runner while carrying such a mark oneself.

argv: the mark's prefix. Prints the pids found, its own pid, and how many were ended.
"""

import os
import sys
from datetime import timedelta

from swarm.process import end_marked, find_marked

found = find_marked(sys.argv[1])
report = end_marked(found, timedelta(seconds=1))
print(*(m.pid for m in found))
print(os.getpid())
print(report.ended)
