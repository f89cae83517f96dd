"""Git hooks in POSIX sh, installed into the hub and into slots: a second line of defence."""
