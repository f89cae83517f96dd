"""Ignore what can be ignored, say so, and stay for a minute."""

import signal
import time

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(60)
