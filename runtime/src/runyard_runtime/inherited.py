"""What agents and jobs see of the environment of whatever started them."""

import fnmatch
import re

# How to find programs, files and the network, but nothing that changes how a Python of theirs
# works, and nothing that a framework could take for its own.
_PASSED_ON = re.compile(
    r"(?:PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|SHELL"
    r"|(?:http|https|ftp|all|no)_proxy|(?:HTTP|HTTPS|FTP|ALL|NO)_PROXY"
    r"|SSL_CERT_\w+|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|LD_LIBRARY_PATH|CUDA_\w+|NVIDIA_\w+)\Z"
)


def clean(environ, more=()):
    """What is passed on; `more` are further names, or patterns such as "SITE_*"."""
    return {
        name: value
        for name, value in environ.items()
        if _PASSED_ON.match(name) or any(fnmatch.fnmatchcase(name, one) for one in more)
    }
