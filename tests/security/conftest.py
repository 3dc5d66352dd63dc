from tests.compute.conftest import sshd as sshd  # one fixture for both
