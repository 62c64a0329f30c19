"""The HTML pages that dswin writes: templates in data/, filled in by jinja2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2

FOLDER = Path(__file__).parent / "data"


def find_template(name: str, **filters: Callable[..., Any]) -> jinja2.Template:
    """Return a template whose values are escaped, and which fails where one is missing.

    :param filters: what the template calls by these names.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    return environment.get_template(name)
