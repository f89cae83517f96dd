"""The only code that runs git. Everything above speaks in object ids, records and outcomes."""
