"""Ray: each worker of a job is a bundle of a placement group."""
