"""`jobsdk ui`: a page on this machine that shows the runs and what they do.

Needs starlette and uvicorn, the extra `ui`.
"""
