"""Checks whether an address can be listened on, by listening there for a moment."""

import errno

NO_ADDRESS = "it is no address of this machine"
UNKNOWN_HOST = "no machine of this name is known"
REASONS = {
    errno.EADDRINUSE: "another program listens there",
    errno.EACCES: "only the administrator may listen there",
    errno.EADDRNOTAVAIL: NO_ADDRESS,
}


def why_no_port(host: str, port: int) -> str:
    """Empty if a server could listen there now. A port with connections in TIME_WAIT counts as free, as for a
    server."""
    import socket  # not needed by a plan without fixed ports

    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, number) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except socket.gaierror:
        return UNKNOWN_HOST
    except OSError as error:
        return REASONS.get(error.errno or 0, error.strerror or str(error))
    return ""
