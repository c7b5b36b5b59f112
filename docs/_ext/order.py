"""The gallery's order: the scripts that are run, by name, then those that are only shown."""


class PlotsFirst:
    """A sort key of sphinx-gallery."""

    def __init__(self, folder):
        self.folder = folder

    def __repr__(self):
        """Return a text that is the same in each build."""
        return "PlotsFirst"

    def __call__(self, name):
        """Return a script's place."""
        return not name.startswith("plot_"), name
