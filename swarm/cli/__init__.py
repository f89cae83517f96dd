"""The command line. Enters: argv. Leaves: text or JSON and an exit code."""
