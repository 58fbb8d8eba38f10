"""Run as a program: ask this interpreter's pip where a project's wheels lie, and print the answer as JSON.

pip knows the user's package indexes, mirrors, find-links folders, credentials, proxies and certificates; none
of that is repeated here. Its public commands can only name a file's address by downloading the file, so this
calls what `pip index versions` calls (the same from pip 21 to 26). When a later pip changes it, the caller
falls back to `pip download`.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module


def main(project: str, filename: str) -> None:
    """Print one JSON object: ``urls`` of the wheel called `filename`, and how pip reaches them."""
    command = import_module("pip._internal.commands").create_command("download")
    options, _ = command.parse_args(
        ["--quiet", "--no-input", "--retries", "2", "--no-deps", "--only-binary", ":all:", project],
    )
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options=options, session=session)
        links = [candidate.link for candidate in finder.find_all_candidates(project)]
    answer = {
        "urls": [link.url_without_fragment for link in links if link.filename == filename],
        "cert": options.cert or None,
        "client_cert": options.client_cert or None,
        "proxy": options.proxy or None,
        "trusted_hosts": list(options.trusted_hosts or ()),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
