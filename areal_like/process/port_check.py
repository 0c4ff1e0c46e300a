"""Whether an address can be listened on, asked by listening there for a moment."""

import errno

NO_ADDRESS = "it is no address of this machine"
UNKNOWN_HOST = "no machine of this name is known"
REASONS = {
    errno.EADDRINUSE: "another program listens there",
    errno.EACCES: "only the administrator may listen there",
    errno.EADDRNOTAVAIL: NO_ADDRESS,
}


def why_no_port(host: str, port: int) -> str:
    """Empty where a server could listen there now. A port whose connections are still ending is free, as it is to the
    servers."""
    import socket  # a plan without fixed ports does without

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
