"""Azure ML: the same job as its service takes it. Nothing here imports azure-ai-ml before it is used."""
