"""A wheel also has the experiments of sims/ and CITATION.cff; pyproject.toml says the rest."""

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


setup(cmdclass={"build_py": WithExperiments})
