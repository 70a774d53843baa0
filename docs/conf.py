"""Settings of the docs site: python -m sphinx -W -b html docs docs/_build"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent
#: A link, but for pictures, to a file outside the site, from a page that lies so many folders deep.
ELSEWHERE = (
    r"(?<!!)\[([^]]*)\]\((?:\.\./){%d}((?:benchmarks|models|papers|pyro_opu|tests|README)[^)]*)\)"
)
#: A function's name before a letter, from which MathML sets it apart by no space.
NAMED = re.compile(r"(\\(?:log|operatorname\{\w+\}))\s*(?=[A-Za-z]|\\(?!left|[bB]ig)[A-Za-z])")
sys.path.insert(0, str(HERE.parent))  # `pyro_opu` of this checkout

from docutils.nodes import SkipNode, math, math_block  # noqa: E402
from latex2mathml.converter import convert  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

import pyro_opu  # noqa: E402

project = "pyro_opu"
author = "pyro_opu developers"
copyright = "pyro_opu developers"
version = release = pyro_opu.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build", "jupyter_execute", "README.md"]
html_theme = "furo"
html_math_renderer = "mathml"  # browsers draw it themselves: no script, and no network
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_title = "pyro_opu"

# Tutorials hold their outputs; they are run by the tests, not here.
nb_execution_mode = "off"
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(torch|pyro|numpy|collections|os|sklearn)\..*"),  # other packages
    (
        "py:.*",
        r"Tensor|Array|Axes|Figure|Captured|MCMC",
    ),  # the same, by the names they are imported as
    ("py:.*", r"pyro_opu\.models\..*|The model|Latent functions O"),  # the inner parts of `models`
    ("py:.*", r".*\.(Rows|Self|RealSelf|TrunkSelf|A|D|M)"),  # type variables
    ("py:.*", r"(.*\.)?(GuideName|LossName|Effort|Law|Method|ImageKind|Picked|Function)"),
    (
        "py:.*",
        r"pyro_opu\.(transfer\.stream\.Stream|guides\.beginning\.Start)",
    ),
    ("py:.*", r"pyro_opu\.(choosing|judging|parts|programs|utils)\..*|NotRecorded"),
    # Protocols, and names of what one argument may be: docstrings say it in words.
    ("py:class", r"(pyro_opu\..*\.)?(Answering|Arrays|Estimator|InputLike|Measure|Source|Student)"),
]


def copied_tutorials() -> None:
    """Notebooks stand beside the package; Sphinx reads only what is below this folder."""
    target = HERE / "tutorials"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for notebook in sorted((HERE.parent / "tutorials").glob("*.ipynb")):
        shutil.copy2(notebook, target)


def fit_links(app: Sphinx, page: str, source: list[str]) -> None:
    """Links that are right in the repository go to a page of the site, or become a path."""
    copied = page.startswith("tutorials/")
    text = re.sub(ELSEWHERE % (1 if copied else page.count("/") + 1), r"\1 (`\2`)", source[0])
    if copied:
        text = text.replace("](../docs/", "](../")
    if page == "tutorials" and not any((HERE / "tutorials").glob("*.ipynb")):
        text = text.partition("```{toctree}")[0]  # an empty one is a warning
    source[0] = text


def write_math(page: Any, formula: math | math_block) -> None:
    """A formula as MathML, in a line or as a block."""
    display = "block" if isinstance(formula, math_block) else "inline"
    page.body.append(convert(NAMED.sub(r"\1\,", formula.astext()), display=display))
    raise SkipNode


def show_all_names() -> None:
    """Autodoc finds members by ``dir``, which shows the names that a room promises, and no more."""
    for thing in (getattr(pyro_opu, name) for name in pyro_opu.__all__):
        if isinstance(thing, ModuleType):
            vars(thing).pop("__dir__", None)


def setup(app: Sphinx) -> None:
    copied_tutorials()
    show_all_names()
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
    app.connect("source-read", fit_links)
