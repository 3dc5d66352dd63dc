"""ssh: machines of a list, one bootstrap on each."""
