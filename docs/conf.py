"""How Sphinx builds the site: `make docs`, or `sphinx-build -W --keep-going docs docs/_build/html`.

The pages of the methods, the tables of the mathematics, and the figures are made from the package
by `_ext/`; the gallery's scripts run at every build.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "docs" / "_ext"), str(ROOT)]

import flower_fedcon  # noqa: E402

# One thread: a figure is then the same on every machine, and two examples run side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")

project = "flower-fedcon"
version = release = flower_fedcon.__version__
copyright = "the authors of flower-fedcon"  # Sphinx's name for it

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx-mathjax-offline",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "docstrings",
    "generated",
]
exclude_patterns = ["_build", "_ext", "_generated"]
exclude_patterns += ["**/sg_execution_times.rst", "sg_execution_times.rst"]
nitpicky = False
highlight_language = "python"

# --- pages ----------------------------------------------------------------------------------------

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["config.cache"]  # the gallery's settings hold functions

# --- the interface --------------------------------------------------------------------------------

default_role = "code"
autosummary_generate = [f"api/{page.name}" for page in (ROOT / "docs" / "api").glob("*.rst")]
autosummary_generate.append("_generated/interface.rst")
autosummary_ignore_module_all = False
autodoc_typehints = "none"  # the docstrings say it
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autodoc_default_options = {"show-inheritance": True}
autodoc_mock_imports: list[str] = []
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
doctest_global_setup = "import numpy as np"

# --- the gallery ----------------------------------------------------------------------------------

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "order.PlotsFirst",
    "download_all_examples": False,
    "show_signature": False,
    "remove_config_comments": True,
    "plot_gallery": "True",
    "abort_on_example_error": False,
    "only_warn_on_example_error": False,
    "min_reported_time": 1000,
    "parallel": 2,
}

# --- how it looks ---------------------------------------------------------------------------------

html_theme = "furo"
html_title = "flower-fedcon"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"top_of_page_buttons": []}
