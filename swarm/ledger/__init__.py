"""All coordination state: one orphan history in the hub, one commit per event."""
