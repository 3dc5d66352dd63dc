from __future__ import annotations

from tests.compute.kubernetes.cluster import Cluster
from tests.compute.kubernetes.conftest import cluster as cluster
from tests.compute.kubernetes.conftest import configure as configure
from tests.compute.kubernetes.conftest import whole_cluster as whole_cluster
from tests.functions.computes import check


def test_functions_in_pods_whose_image_lacks_jobsdk(cluster: Cluster) -> None:
    check("cluster")
