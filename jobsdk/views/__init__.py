"""Views of a run for people: what its folder holds, as HTML. They read; nothing here changes a run."""
