"""An etcd that answers slowly, or not within the limit, loses no name."""

import pytest

from areal_like.discovery.etcd import EtcdNameStore
from tests.discovery.test_names import eventually
from tests.support.etcd_server import etcd_servers, name_resolve, section_of
from tests.support.tcp_proxy import Proxy

pytestmark = pytest.mark.xdist_group("etcd")


def test_no_name_is_lost_while_etcd_answers_slowly_and_then_too_late(tmp_path):
    with etcd_servers(tmp_path / "etcd") as (member,), Proxy(member.address) as proxy:
        slow = name_resolve(type="etcd3", etcd3_addr=proxy.address, ttl_s=30.0, etcd3_timeout_s=1.0)
        with (
            EtcdNameStore(slow, tmp_path, "user/run", "server/0") as ours,
            EtcdNameStore(section_of([member]), tmp_path, "user/run", "test/0") as direct,
        ):
            ours.add("server/0", "here")
            proxy.delay_s = 0.2
            ours.add("server/1", "there")
            assert ours.get("server/1") == "there"
            proxy.delay_s = 3.0
            assert ours.find() == {"server/0": "here", "server/1": "there"}, "what is known stays known"
            proxy.delay_s = 0.0
            proxy.cut()
            eventually(lambda: ours.find() == direct.find() == {"server/0": "here", "server/1": "there"})
            assert not ours.lost
