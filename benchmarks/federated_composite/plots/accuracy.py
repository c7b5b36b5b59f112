"""Accuracy against what it has cost: rounds, megabytes, local gradients, or seconds."""

from benchopt import BasePlot

COSTS = {
    "Rounds": "objective_rounds",
    "Megabytes": "objective_megabytes",
    "Local gradients": "objective_gradients",
    "Seconds": "time",
}


class Plot(BasePlot):
    """A curve for each solver, medians over repetitions."""

    name = "Accuracy by cost"
    type = "scatter"
    options = {"dataset": ..., "objective": ..., "cost": list(COSTS)}

    def plot(self, df, dataset, objective, cost):
        """Return the curves."""
        column = COSTS[cost]
        own = df[(df["dataset_name"] == dataset) & (df["objective_name"] == objective)]
        curves = []
        for solver, rows in own.groupby("solver_name"):
            middle = rows.groupby("stop_val")[[column, "objective_value"]].median()
            middle = middle[middle[column] > 0].sort_values(column)
            curves.append(
                {
                    "x": middle[column].tolist(),
                    "y": middle["objective_value"].clip(lower=1e-16).tolist(),
                    "label": solver,
                    **self.get_style(solver),
                }
            )
        return curves

    def get_metadata(self, df, dataset, objective, cost):
        """Return titles."""
        return {
            "title": f"{objective}\n{dataset}",
            "xlabel": cost,
            "ylabel": "max(F(x) - F*, violation)",
        }
