"""Frame common to all pages: style, scripts, data, and a content security policy that blocks everything else."""

import hashlib
import re
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Self

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

_HERE = Path(__file__).parent / "web"
_TEMPLATES = Environment(
    loader=FileSystemLoader(_HERE),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def _plain(value: Any) -> object:  # noqa: ANN401 - a number or an array of numpy, or a sequence
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return list(value)


_CODE = re.compile(r"(?<!`)`([^`\s]|[^`\s][^`]*[^`\s])`(?!`)")


def mark_code(text: object) -> Markup:
    """Return a text as HTML, in which what stands between backticks is code: that of `obj` is `<code>obj</code>`."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(Markup.escape(text))))


def _remove_backticks(text: str) -> str:
    """Return a text for an attribute of HTML, which cannot have code."""
    return _CODE.sub(r"\1", text)


_TEMPLATES.filters["mark_code"] = mark_code
_TEMPLATES.filters["remove_backticks"] = _remove_backticks
_TEMPLATES.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "default": _plain}


class Packed(bytes):
    """Data of a page; the constructor compresses them with zlib.

    The scripts of the page read the data with `unpacked(id)`. The length of this object is the number of
    compressed bytes, before base64.
    """

    def __new__(cls, content: bytes, *, noisy: bool = False) -> Self:
        """Compress data.

        Args:
            content: The data.
            noisy: True selects run-length compression. It is a hundred times faster, and as good for data that look
                like noise.
        """
        strategy = zlib.Z_RLE if noisy else zlib.Z_DEFAULT_STRATEGY
        writer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, strategy)
        return super().__new__(cls, writer.compress(content) + writer.flush())


def resource(name: str) -> str:
    """Return the text of a file of this package, such as `theme.css`."""
    return (_HERE / name).read_text(encoding="utf-8")


def render(template: str, **values: object) -> str:
    """Return the HTML of a template of this package, such as `page.html`; texts among the values are escaped.

    Args:
        template: Name of the file.
        **values: Variables of the template; one that is missing is an error.
    """
    return _TEMPLATES.get_template(template).render(values)


def document(
    title: str,
    body: str,
    *,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    data: Mapping[str, object] | None = None,
) -> str:
    """Return a complete HTML page.

    Args:
        title: Title as plain text.
        body: HTML of the body, from `render`.
        styles: CSS added to the style of all pages (`theme.css`).
        scripts: JavaScript added to that of all pages with scripts (`page.js`). The content security policy of the
            page allows only these scripts, by their SHA-256.
        data: Data by id of the HTML element that holds them: `Packed` bytes, or values that are written as JSON.
    """
    sources = []
    if scripts:
        sources = [resource("page.js"), *scripts]
    hashes = []
    for source in sources:
        digest = hashlib.sha256(source.encode()).digest()
        hashes.append(b64encode(digest).decode())
    values = {}
    packed = {}
    for name, value in (data or {}).items():
        if isinstance(value, Packed):
            packed[name] = b64encode(value).decode()
        else:
            values[name] = value
    return render(
        "document.html",
        title=title,
        body=body,
        styles=[resource("theme.css"), *styles],
        scripts=sources,
        hashes=hashes,
        values=values,
        packed=packed,
    )


def embed_page(title: str, page: str, height: str) -> str:
    """Return a page as a frame for the output of a notebook; its scripts run, but do not reach the notebook.

    Args:
        title: Title of the frame, which screen readers say.
        page: HTML of the page, from `document`.
        height: Height of the frame in CSS, such as `46rem`.
    """
    return (
        f'<iframe title="{escape(title, quote=True)}" sandbox="allow-scripts allow-downloads" '
        f'style="width: 100%; height: {height}; border: 0" srcdoc="{escape(page, quote=True)}"></iframe>'
    )
