"""What a distribution has of the clone: a description, experiments, CITATION.cff."""

import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithExperiments(build_py):
    """Copy to where `fedcon reproduce` looks for experiments and claims, `fedcon cite` for us."""

    def run(self) -> None:
        """Build the package; one that is installed as it stands finds them in the clone."""
        super().run()
        if not self.editable_mode:
            package = Path(self.build_lib, "flower_fedcon")
            shutil.copyfile("CITATION.cff", package / "CITATION.cff")
            for file in Path("sims").rglob("*.toml"):
                if file.name != "pyproject.toml" and "benchmarks" not in file.parts:
                    target = package / "lab" / file
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, target)


def without_links(readme: str) -> str:
    """Return the README as an index of packages shows it: without links into the clone.

    A page's name goes on in brackets, a file of code and a figure do not.
    """
    text = re.sub(r"^!\[[^\]]*\]\((?!http)[^)]+\)\n\n", "", readme, flags=re.MULTILINE)
    text = re.sub(r"^<!-- .* -->\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]+)\]\((?!http)[^)]+\.(?:py|cff)\)", r"\1", text)
    text = re.sub(r"\[(\w+\.md)\]\(\1\)", r"\1", text)
    text = re.sub(r"\[([^\]]+)\]\((?!http)([^)]+)\)", r"\1 (`\2`)", text)
    return text.replace("\n\n", "\n\nFiles that this page names are the repository's.\n\n", 1)


setup(
    cmdclass={"build_py": WithExperiments},
    long_description=without_links(Path("README.md").read_text("utf-8")),
    long_description_content_type="text/markdown",
)
