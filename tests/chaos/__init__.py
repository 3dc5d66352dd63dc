"""Injected faults: a table of what may go wrong, and of what a person must be told each time. See `faults`."""
