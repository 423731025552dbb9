#!/usr/bin/env python3
"""check_links.py SITE: every link within a built site leads to a page and an anchor, and
every link of the repository's Markdown to a file."""

import os
import re
import subprocess
import sys
import urllib.parse
from html.parser import HTMLParser


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.anchors, self.links = {"", "__top"}, []
        with open(path, encoding="utf-8") as file:
            self.feed(file.read())

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        for key in ("id", "name"):
            if attrs.get(key):
                self.anchors.add(attrs[key])
        for key in ("href", "src"):
            if attrs.get(key):
                self.links.append(attrs[key])


def broken_in_repository():
    """The number of links of Markdown files, in the repository, to files that are not there."""
    listed = subprocess.run(["git", "ls-files", "*.md"], capture_output=True, text=True, check=True)
    n = 0
    for path in listed.stdout.split():
        with open(path, encoding="utf-8") as file:
            # Code has brackets of its own.
            text = re.sub(r"```.*?```", "", file.read(), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s#]+)[^)]*\)", text):
            if urllib.parse.urlsplit(link).scheme:
                continue
            if not os.path.exists(os.path.join(os.path.dirname(path), link)):
                print(f"{path}: no file {link}")
                n += 1
    return n


def main(site):
    pages = {}

    def page(path):
        if path not in pages:
            pages[path] = Page(path)
        return pages[path]

    problems = n_links = 0
    for folder, _, names in os.walk(site):
        if os.path.relpath(folder, site).split(os.sep)[0] == "api":
            continue  # doxygen's own pages
        for name in sorted(names):
            # The page for wrong addresses is shown at any of them.
            if not name.endswith(".html") or name == "404.html":
                continue
            path = os.path.join(folder, name)
            for link in page(path).links:
                url = urllib.parse.urlsplit(link)
                if url.scheme or url.netloc:
                    continue
                n_links += 1
                to = path
                if url.path:
                    to = os.path.normpath(os.path.join(folder, urllib.parse.unquote(url.path)))
                    if os.path.isdir(to):
                        to = os.path.join(to, "index.html")
                where = os.path.relpath(path, site)
                if not os.path.exists(to):
                    print(f"{where}: no page for {link}")
                    problems += 1
                elif to.endswith(".html"):
                    anchor = urllib.parse.unquote(url.fragment)
                    if anchor not in page(to).anchors:
                        print(f"{where}: no anchor for {link}")
                        problems += 1
    problems += broken_in_repository()
    print(f"{len(pages)} pages, {n_links} links, {problems} problems")
    return 1 if problems or n_links == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
