"""Where a cluster is looked for."""

from __future__ import annotations

import socket

import pytest

from stacx_core.trainer.ray.cluster import knock, ray


def test_a_port_at_which_something_listens_is_fine() -> None:
    with socket.create_server((ray.util.get_node_ip_address(), 0)) as server:
        knock(f"localhost:{server.getsockname()[1]}")


def test_a_port_at_which_nothing_listens_is_found_out_at_once() -> None:
    with socket.socket() as bound:
        bound.bind((ray.util.get_node_ip_address(), 0))
        with pytest.raises(OSError, match="refused"):
            knock(f"localhost:{bound.getsockname()[1]}")


def test_what_is_no_address_is_left_to_ray() -> None:
    knock("auto")


def test_a_ray_client_is_refused() -> None:
    with pytest.raises(ValueError, match="give HOST:PORT"):
        knock("ray://head:10001")
