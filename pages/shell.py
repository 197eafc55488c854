"""Frame common to all pages: style, scripts, data, and a content security policy that blocks everything else."""

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Self

_HERE = Path(__file__).parent
_POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data: blob:; style-src 'unsafe-inline'; "
    "script-src {}"
)


class Packed(bytes):
    """Data of a page as bytes compressed with zlib; the scripts of the page read them with `unpacked(id)`.

    Its length is the compressed length, before base64. The keyword `noisy` selects run-length compression, which is a
    hundred times faster and as good for data that are like noise.
    """

    def __new__(cls, content: bytes, *, noisy: bool = False) -> Self:
        """Compress the content."""
        strategy = zlib.Z_RLE if noisy else zlib.Z_DEFAULT_STRATEGY
        writer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, strategy)
        return super().__new__(cls, writer.compress(content) + writer.flush())


def resource(name: str) -> str:
    """Return the text of a file of this package, such as `theme.css`."""
    return (_HERE / name).read_text(encoding="utf-8")


def document(
    title: str,
    body: str,
    *,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    data: Mapping[str, object] | None = None,
) -> str:
    """Return a complete page as HTML.

    Args:
        title: title as plain text; it is escaped here.
        body: HTML of the body; the caller has escaped what comes from files.
        styles: CSS added to the style of all pages (`theme.css`).
        scripts: JavaScript added to the script of all pages (`page.js`). The policy of the page allows scripts by their
            SHA-256, so that no other script runs, whatever a text contains.
        data: data by id of the element that contains them: `Packed` bytes, or values for JSON.
    """
    sources = [resource("page.js"), *scripts]
    hashes = " ".join(f"'sha256-{_sha256(source)}'" for source in sources)
    blocks = [_block(name, value) for name, value in (data or {}).items()]
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY.format(hashes)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        *(f"<style>\n{style}</style>" for style in [resource("theme.css"), *styles]),
        "</head>",
        "<body>",
        body,
        *blocks,
        *(f"<script>{source}</script>" for source in sources),
        "</body>",
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def _sha256(source: str) -> str:
    return base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def _block(name: str, value: object) -> str:
    if isinstance(value, Packed):
        content = base64.b64encode(value).decode()
        return f'<script type="application/octet-stream" id="{escape(name)}">{content}</script>'
    # No text of the data can end the element.
    content = json.dumps(value, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{escape(name)}">{content}</script>'
