"""A user's project: modules that a function refers to. It knows nothing of jobsdk."""
