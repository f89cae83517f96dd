"""A runner of its own process: three agents, each with a daemon; says `ready`, then waits for ever.

argv: a folder for outputs, the runner's id.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

from swarm.process import Spec, start

folder, runner = Path(sys.argv[1]), sys.argv[2]
daemon = Path(__file__).with_name("daemon.py")
children = []
for n in range(3):
    script = f"{sys.executable} -I -S {daemon} daemon{n}; trap '' INT; echo up > up{n}; sleep 60; :"
    children.append(
        start(
            Spec(
                argv=("/bin/sh", "-c", script),
                cwd=folder,
                env={"PATH": os.environ["PATH"]},
                stdout=folder / f"out{n}",
                output_cap=1000,
                mark=f"{runner}.agent{n}.secret",
                grace=timedelta(seconds=0.3),
                record=folder / f"record{n}",
            )
        )
    )
while not all((folder / f"up{n}").exists() for n in range(3)):
    time.sleep(0.02)
print(*(child.shim_pid for child in children), flush=True)
while True:
    time.sleep(60)
