"""The variables by which clients go around a proxy."""

from collections.abc import Mapping

LOOPBACK = ("127.0.0.1", "localhost")
ALL = "*"


def around_proxy(variables: Mapping[str, str]) -> dict[str, str]:
    """Both names with the loopback, after what the user has there. Clients read one name or the other, so that where
    only one is set, it holds for both. A `*` counts by itself only, and has the loopback already."""
    upper, lower = variables.get("NO_PROXY"), variables.get("no_proxy")
    given = {"NO_PROXY": lower if upper is None else upper, "no_proxy": upper if lower is None else lower}
    return {name: _with_loopback(hosts or "") for name, hosts in given.items()}


def _with_loopback(hosts: str) -> str:
    known = [host for each in hosts.split(",") if (host := each.strip())]
    return hosts if known == [ALL] else ",".join(dict.fromkeys((*known, *LOOPBACK)))
