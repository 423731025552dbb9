"""For mkdocs: links that leave docs/ become the names of files in the repository."""

import os
import re

from mkdocs.exceptions import PluginError

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)#\s]*)(#[^)]*)?\)")


def on_page_markdown(markdown, page, **_):
    folder = os.path.dirname(os.path.join(ROOT, "docs", page.file.src_path))

    def name(match):
        path = os.path.normpath(os.path.join(folder, match[2]))
        if path.startswith(os.path.join(ROOT, "docs") + os.sep):
            return match[0]  # mkdocs checks it
        if not os.path.exists(path):
            raise PluginError(f"{page.file.src_path}: no {match[2]} in the repository")
        path = os.path.relpath(path, ROOT)
        return f"`{path}`" if match[1].strip("`") == path else f"{match[1]} (`{path}`)"

    return LINK.sub(name, markdown)
