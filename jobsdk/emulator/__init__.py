"""A local Azure ML: the part of its service that command jobs use, on this machine, for tests without the cloud.

The unmodified azure-ai-ml client reaches it by nothing but environment variables: a proxy takes its connections to
Azure's names, and a certificate authority made for this emulator vouches for them.
"""
