"""Leave a classic daemon behind: two forks, a session of its own, no environment, no open files.

argv: a file to write its pid into. The daemon sleeps for a minute.
"""

import os
import sys
from pathlib import Path

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        devnull = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(devnull, fd)
        pid_file = Path(sys.argv[1])
        partial = pid_file.with_suffix(".partial")
        partial.write_text(str(os.getpid()))
        partial.rename(pid_file)
        os.execve("/bin/sleep", ["sleep", "60"], {})
    os._exit(0)
os.wait()
